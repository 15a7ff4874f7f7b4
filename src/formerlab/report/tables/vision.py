"""Accuracy of the vision study, for its tables and figures (Tokenformer, arXiv:2410.23168, section 4.2).

The baseline of all tables, the linear probe, is logistic regression on the pixels.
"""

import json

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import table
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.published import TOKENFORMER, published_rows
from formerlab.report.runs import baselines, load_runs, means_by_run, with_difference
from formerlab.report.tables.blocks import claim_runs, pooled_estimate, with_pooled
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
PUBLISHED = {"sizes": "Table 2", "scores": "Table 4", "norms": "Table 5"}
SIZES, SCORES, _NORMS = "Size (Table 2)", "Score (Table 4)", "Norms, minus gain and bias"
_GROWTH, DEPTH, OTHER = "Growth, minus the parent", "Averages over depth, minus none", "Other models, minus ViT"
_VIT, _EXP = "ViT-{}/16 (MAE recipe) 224px", "TokenFormer-{}/16 exp + L1 norm"
_MATCHED, _GELU_L1 = "TokenFormer-{}/16 (parameter matched)", "TokenFormer-{}/16 GeLU + L1 norm"
_WITH_NORM = "TokenFormer-{}/16, LayerNorm "
COMPARISONS = (
    (SIZES, "Tokenformer minus ViT,\nequal parameters", "tokenformer-matched", "vit", _MATCHED, _VIT),
    (SIZES, "a third more parameters\nminus equal parameters", "tokenformer", "tokenformer-matched",
     "TokenFormer-{}/16", _MATCHED),
    (SCORES, "GeLU minus exp\n(both L1 norm)", "score-gelu-l1", "score-exp-l1", _GELU_L1, _EXP),
    (SCORES, "L2 norm minus L1 norm\n(both after GeLU)", "score-gelu-l2", "score-gelu-l1", "", ""),
    (SCORES, "L2 norm before GeLU\nminus after GeLU", "tokenformer", "score-gelu-l2", "", ""),
    (SCORES, "the last two steps\ntogether", "tokenformer", "score-gelu-l1", "TokenFormer-{}/16 GeLU + L2 norm",
     _GELU_L1),
    (_NORMS, "bias alone", "norm-bias", "norm-gain-bias", f"{_WITH_NORM}bias only", f"{_WITH_NORM}gain and bias"),
    (_NORMS, "no parameters", "tokenformer", "norm-gain-bias", f"{_WITH_NORM}none", f"{_WITH_NORM}gain and bias"),
    (_GROWTH, "parent trained further,\nequal FLOPs", "trained-on", "tokenformer-small", "", ""),
    (_GROWTH, "grown as published", "grown-random-sqrt", "tokenformer-small", "", ""),
    (_GROWTH, "grown with zero keys", "grown-zero-keep", "tokenformer-small", "", ""),
    (_GROWTH, "final size from scratch,\ntwice the FLOPs", "tokenformer", "tokenformer-small", "", ""),
    (DEPTH, "ViT", "vit-dwa", "vit", "", ""),
    (DEPTH, "Tokenformer", "tokenformer-dwa", "tokenformer", "", ""),
)  # fmt: skip
"""Question, label, run, the run it is compared with, and the published models of both; {} is their size, B or L."""
PAIR = ["question", "model", "run", "compared_with"]


def accuracies(results: Results, runs: list[str]) -> DataFrame:
    """Return one row per run and seed: the columns of `load_runs` with the metrics of its test images."""
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
    table = means_by_run(measured, METRICS, first=["images", "regime"])
    names = zip(table["run"], table["variant"], strict=True)
    return table.assign(model=[NAMES.get(run) or f"{variant} ({run})" for run, variant in names])


def image_floors(results: Results, runs: list[str]) -> DataFrame:
    """Return a row per baseline and data set."""
    groups = baselines(results, STUDY, runs).groupby(["run", "floor"], sort=False)
    rows = [
        {"source": "ours", "run": run, "model": f"{floor}, on the pixels"} | _scores(images)
        for (run, floor), images in groups
    ]
    return DataFrame(rows)


def published_accuracies(paper_table: str) -> DataFrame:
    """Return the published rows of a table of the paper."""
    return published_rows(
        TOKENFORMER, paper_table, names={"top1_accuracy": "top1_percent"}, factors={"parameters": 1e6}
    )


def published_differences() -> DataFrame:
    """Return the differences between the published models of COMPARISONS, for both sizes."""
    printed = pd.concat([published_accuracies(table) for table in PUBLISHED.values()])
    level = printed.drop_duplicates("model").set_index("model")["top1_percent"].astype(float)
    rows = []
    for question, label, _, _, *models in COMPARISONS:
        for model, other in ([name.format(size) for name in models] for size in "BL"):
            if model in level and other in level:
                rows.append((question, label, model, other, level[model] - level[other]))
    return DataFrame(rows, columns=[*PAIR, COMPARED]).assign(source="published", part="difference")


def _by_question(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the differences beside the published ones, then the accuracies of all models."""
    if rows["source"].eq("published").any():
        return {}
    text = rows["regime"].str.partition(", ")[0].replace("", np.nan).dropna().iloc[0]
    theirs = published_differences()
    sizes = theirs["run"].str.extract("-([BL])/")[0]
    asked = rows.dropna(subset="question").drop(columns=["top1_percent", "parameters", "epochs"])
    for size in "BL":
        printed = theirs[sizes == size].set_index("model")[COMPARED]
        asked[f"ImageNet, {size}/16 (points) ↑"] = asked["model"].map(printed)
    minus = asked["question"].str.partition(", ")[2].map(lambda words: f", {words}" if words else "")
    names = asked["model"].replace("the last two steps\ntogether", "L2 norm before GeLU minus L1 norm after it")
    asked["model"] = names.str.replace("\n", " ")
    variant = rows["run"].str.startswith(("score-", "norm-", "grown-", "trained-on", "tokenformer-s"), na=False)
    levels = rows.assign(model=variant.map({True: "Tokenformer, ", False: ""}) + rows["model"])
    levels = levels[levels["question"].isna()].sort_values("top1_percent", ascending=False)
    blocks = {f"{text}, differences{words}": group for words, group in asked.groupby(minus, sort=False)}
    blocks |= {f"{text}, accuracy": levels}
    return {name: block.drop(columns=["regime", "question", "compared_with"]) for name, block in blocks.items()}


@table(reads="test.csv floors.csv", published=published_differences, readers=_by_question,
       columns="source regime question model run compared_with parameters epochs top1_percent[] top1_points[]+ "
               "error_ratio[] -loss_nats[] -top5_percent -calibration_error -flops_cumulative seeds -diverged bold"
       )  # fmt: skip
def vision_table(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer as good as a ViT? Top-1 accuracy of image classification, after Tables 2, 4 and 5 of Tokenformer
    (arXiv:2410.23168). A difference is the accuracy of the first model minus that of the second, paired by seed; above
    zero, the first is better. The error ratio is the error rate of the first over that of the second; below 1, the
    first is better. In brackets: 95 % interval over seeds, with the variance of similar runs, as for verdicts. Bold: an
    error ratio (or its inverse) on which a verdict rests. ImageNet: the published differences, one model of each.
    Epochs include those of the parent. The linear probe is a logistic regression on the pixels. Loss and calibration
    are in the CSV.
    """
    measured = accuracies(results, runs)
    texts = measured.set_index("run").get("read", pd.Series(dtype=str)).dropna()
    epochs = {run: json.loads(text)[-1]["epochs_cumulative"] for run, text in texts.items()}
    levels = models(measured).assign(epochs=lambda rows: rows["run"].map(epochs).round(1))
    levels = pd.concat([image_floors(results, runs), levels], ignore_index=True)
    pairs = DataFrame([row[:4] for row in COMPARISONS], columns=PAIR)
    pairs = pairs[pairs["run"].isin(measured["run"]) & pairs["compared_with"].isin(measured["run"])]
    if pairs.empty:
        return levels
    pairs = with_difference(pairs, measured, "run", "compared_with", COMPARED, "top1_percent", results)
    pairs = with_pooled(pairs, results, STUDY, "run", "compared_with", COMPARED, "error_rate")
    reader, claims = ClaimRows(results, STUDY, ClaimArms()), claim_runs(results, STUDY).values()
    models_of_pairs = pairs[["run", "compared_with"]].to_numpy()
    signs = [{a: 1.0, b: -1.0} for a, b in models_of_pairs]
    ratios = [pooled_estimate(reader, "error_ratio", pair, "error_rate", logarithm=True) for pair in signs]
    bold = [any({*pair} <= claim for claim in claims) for pair in models_of_pairs]
    pairs = pairs.assign(bold=bold).join(DataFrame(np.exp(DataFrame(ratios, pairs.index))))
    return pd.concat([levels, pairs], ignore_index=True)
