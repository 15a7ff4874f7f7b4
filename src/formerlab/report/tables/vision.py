"""Accuracy of the vision study, of its tables and figures (Tokenformer, arXiv:2410.23168, section 4.2).

The baseline of all tables, the linear probe, is logistic regression on the pixels.
"""

from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.published import TOKENFORMER, published_rows
from formerlab.report.runs import baselines, difference, load_runs, means_by_run
from formerlab.results.read import Results
from formerlab.statistics import expected_calibration_error

STUDY = "vision"

NAMES = {
    "vit": "ViT",
    "vit-wider": "ViT, a third more parameters",
    "tokenformer-matched": "Tokenformer, same number of parameters",
    "tokenformer": "Tokenformer: L2 norm, then GeLU; norms without parameters",
    "score-exp-l1": "exp, then L1 norm (softmax times n)",
    "score-gelu-l1": "GeLU, then L1 norm times n (our definition)",
    "score-gelu-l2": "GeLU, then L2 norm",
    "norm-bias": "norms with bias",
    "norm-gain-bias": "norms with gain and bias",
    "tokenformer-small": "parent: a quarter of the parameter tokens",
    "tokenformer-short": "final size from scratch, steps of the stage",
    "trained-on": "parent trained further, equal FLOPs",
    "grown-random-sqrt": "grown as published",
    "grown-zero-keep": "grown with zero keys",
    "vit-dwa": "ViT with averages over depth",
    "tokenformer-dwa": "Tokenformer with averages over depth",
}
"""Labels of runs."""

METRICS = ("top1_percent", "top5_percent", "loss_nats", "calibration_error")
COMPARED = "top1_points"
COLUMNS = (
    "source -run model parameters top1_percent[] top1_points[] compared_with -interval -top5_percent loss_nats[] "
    "calibration_error -flops_cumulative -images seeds -diverged"
)
"""Columns of the tables."""


def accuracies(results: Results, runs: list[str]) -> DataFrame:
    """Return one row per run and seed: the columns of `recorded` with the metrics of its test images."""
    rows, records = results.rows("test.csv", STUDY, runs), load_runs(results, STUDY, runs)
    metrics = [
        {"run": run, "seed": seed}
        | _scores(group)
        | {"calibration_error": expected_calibration_error(group["confidence"], group["rank"] == 0)}
        for (run, seed), group in rows.groupby(["run", "seed"], sort=False)
    ]
    return records.merge(DataFrame(metrics), on=["run", "seed"])


def _scores(rows: DataFrame) -> dict[str, float]:
    accuracies = {f"top{k}_percent": 100 * float((rows["rank"] < k).mean()) for k in (1, 5)}
    return {"images": len(rows)} | accuracies | {"loss_nats": float(np.mean(rows["loss_nats"].to_numpy()))}


def models(measured: DataFrame) -> DataFrame:
    """Return one row per run: the mean of each metric over seeds with its Student interval, and the shared columns."""
    table = means_by_run(measured, METRICS, first=["images"])
    names = zip(table["run"], table["variant"], strict=True)
    return table.assign(model=[NAMES.get(run) or f"{variant} ({run})" for run, variant in names])


def comparison(results: Results, arms: str) -> DataFrame:
    """Return our rows of a table. `arms` has a word per run: `run`, or `run:reference` to compare it with another
    run.
    """
    compared = {run: reference for run, _, reference in (word.partition(":") for word in arms.split())}
    measured = accuracies(results, [*compared])
    table = models(measured).set_index("run", drop=False)
    table = table.loc[[run for run in compared if run in table.index]].reset_index(drop=True)
    pairs = [(run, compared[run]) for run in table["run"]]
    points = [difference(measured, *pair, COMPARED, "top1_percent", results) for pair in pairs]
    differences = [{"compared_with": other} | gap if gap else {} for (_, other), gap in zip(pairs, points, strict=True)]
    return pd.concat([image_floors(results, [*compared]), table.join(DataFrame(differences))], ignore_index=True)


def _readers(rows: DataFrame) -> DataFrame:
    """Return rows with labels in place of the runs that they are compared with."""
    if rows["source"].eq("published").any():
        return rows
    labels = rows.set_index("run")["model"].str.partition(":")[0]
    return rows.assign(compared_with=rows["compared_with"].map(labels))


def image_floors(results: Results, runs: list[str]) -> DataFrame:
    """Return a row per baseline and data set."""
    groups = baselines(results, STUDY, runs).groupby(["run", "floor"], sort=False)
    rows = [
        {"source": "ours", "run": run, "model": f"{floor}, on the pixels"} | _scores(images)
        for (run, floor), images in groups
    ]
    return DataFrame(rows)


def published_accuracies(place: str) -> DataFrame:
    """Return the published rows of a table of the paper."""
    return published_rows(TOKENFORMER, place, names={"top1_accuracy": "top1_percent"}, factors={"parameters": 1e6})


@table(reads="test.csv floors.csv", runs="vit vit-wider tokenformer-matched tokenformer",
       published=partial(published_accuracies, "Table 2"), columns=COLUMNS, readers=_readers)  # fmt: skip
def vision_sizes(results: Results, runs: list[str]) -> DataFrame:
    """Image classification with ViT and Tokenformer, with equal parameters and with a third more, after Table 2 of
    Tokenformer (arXiv:2410.23168). In brackets: 95 % Student t interval over seeds, or with one seed a paired bootstrap
    over the test images; differences are paired by seed. A run that diverged counts as a uniform guess. Published is
    ImageNet-1K: compare differences and no levels.
    """
    return comparison(results, "vit vit-wider:vit tokenformer-matched:vit tokenformer:tokenformer-matched")


@table(reads="test.csv", runs="score-* tokenformer", needs="score-*",
       published=partial(published_accuracies, "Table 4"), columns=COLUMNS, readers=_readers)  # fmt: skip
def vision_scores(results: Results, runs: list[str]) -> DataFrame:
    """Image classification with other scores than softmax in parameter attention, after Table 4 of Tokenformer
    (arXiv:2410.23168). The paper's rows change activation and norm, and the last one also their order; ours have both
    orders. GeLU with the L1 norm is in neither official code; ours divides GeLU by its sum of absolute values, times n.
    In brackets: 95 % Student t interval over seeds, or with one seed a paired bootstrap over images; differences are
    paired by seed. Published is ImageNet-1K: compare differences and no levels.
    """
    arms = "score-exp-l1 score-gelu-l1:score-exp-l1 score-gelu-l2:score-gelu-l1 tokenformer:score-gelu-l1"
    return comparison(results, arms)


@table(reads="test.csv", runs="norm-* tokenformer", needs="norm-*",
       published=partial(published_accuracies, "Table 5"), columns=COLUMNS, readers=_readers)  # fmt: skip
def vision_norms(results: Results, runs: list[str]) -> DataFrame:
    """Image classification with block norms that learn gain and bias, bias alone or nothing, after Table 5 of
    Tokenformer (arXiv:2410.23168). The final norm learns both in all models. A gain common to all channels cannot
    matter in front of parameter attention, only its variation can. In brackets: 95 % Student t interval over seeds, or
    with one seed a paired bootstrap over images; differences are paired by seed.
    """
    return comparison(results, "norm-gain-bias norm-bias:norm-gain-bias tokenformer:norm-gain-bias")


@table(reads="test.csv floors.csv", runs="tokenformer* grown-* trained-on vit vit-dwa", needs="grown-* *-dwa",
       columns=COLUMNS, readers=_readers)  # fmt: skip
def vision_growth_table(results: Results, runs: list[str]) -> DataFrame:
    """Image classification with Tokenformers that grow. They stand beside their parent trained further for the FLOPs of
    the stage, and Tokenformers from scratch; averages over depth are shown if they were run. The methods are of
    Tokenformer (arXiv:2410.23168, section 3.3) and DenseFormer (arXiv:2402.02622), without such results on images.
    In brackets: 95 % Student t interval over seeds, or with one seed a paired bootstrap over images; differences are
    paired by seed.
    """
    grown = (
        "tokenformer-small tokenformer tokenformer-short grown-random-sqrt grown-zero-keep trained-on tokenformer-dwa"
    )
    return comparison(results, " ".join([*(f"{run}:tokenformer" for run in grown.split()), "vit", "vit-dwa:vit"]))
