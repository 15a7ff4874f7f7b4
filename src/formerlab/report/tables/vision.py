"""Accuracy of the vision study, for its tables and figures (Tokenformer, arXiv:2410.23168, section 4.2).

The baseline of the table, called linear probe, is logistic regression on the pixels.
"""

import json
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.published import TOKENFORMER, published_rows
from formerlab.report.runs import (
    baselines,
    difference,
    load_runs,
    means_by_run,
    seed_count,
    summarize,
    validation_losses,
    with_difference,
)
from formerlab.report.tables.cells import (
    answer_word,
    claim_rows,
    claim_verdicts,
    first_row,
    in_words,
    pooled_estimate,
    verdict_cell,
    with_pooled,
    with_verdict,
)
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
SIZES, SCORES, NORMS = "Size (Table 2)", "Score (Table 4)", "Norms, minus gain and bias"
GROWTH, DEPTH, OTHER = "Growth, minus the parent", "Averages over depth, minus none", "Other models, minus ViT"
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
    (SCORES, "L2 norm before GeLU\nminus L1 norm after it", "tokenformer", "score-gelu-l1",
     "TokenFormer-{}/16 GeLU + L2 norm", _GELU_L1),
    (NORMS, "bias alone", "norm-bias", "norm-gain-bias", f"{_WITH_NORM}bias only", f"{_WITH_NORM}gain and bias"),
    (NORMS, "no parameters", "tokenformer", "norm-gain-bias", f"{_WITH_NORM}none", f"{_WITH_NORM}gain and bias"),
    (GROWTH, "parent trained further,\nequal FLOPs", "trained-on", "tokenformer-small", "", ""),
    (GROWTH, "grown as published", "grown-random-sqrt", "tokenformer-small", "", ""),
    (GROWTH, "grown with zero keys", "grown-zero-keep", "tokenformer-small", "", ""),
    (GROWTH, "final size from scratch,\ntwice the FLOPs", "tokenformer", "tokenformer-small", "", ""),
    (DEPTH, "ViT", "vit-dwa", "vit", "", ""),
    (DEPTH, "Tokenformer", "tokenformer-dwa", "tokenformer", "", ""),
)  # fmt: skip
"""Question, label, run, the run it is compared with, and the published models of both; {} is their size, B or L."""
FAIR = (
    (GROWTH, "grown as published minus\nparent trained further", "grown-random-sqrt", "trained-on"),
    (GROWTH, "grown with zero keys minus\nparent trained further", "grown-zero-keep", "trained-on"),
)
"""Comparisons of equal FLOPs."""
_FROM_SCRATCH = (GROWTH, "grown as published minus\nfinal size from scratch", "grown-random-sqrt", "tokenformer")
"""Comparison that only the table shows, not the figure."""
_AS_GOOD = ("tokenformer-matched", "vit")
LARGEST_EQUAL_RATIO = float(np.exp(0.05))
"""Ratio of error rates up to which the claim calls a Tokenformer as good as the ViT."""
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
    """Return one row per run: the mean of each metric over seeds with its Student interval, images and regime."""
    table = means_by_run(measured, METRICS, first=["images", "regime"])
    names = zip(table["run"], table["variant"], strict=True)
    return table.assign(model=[NAMES.get(run) or f"{variant} ({run})" for run, variant in names])


def image_baselines(results: Results, runs: list[str]) -> DataFrame:
    """Return a row per baseline and data set, with the metrics of its images."""
    groups = baselines(results, STUDY, runs).groupby(["run", "floor"], sort=False)
    rows = [
        {"source": "ours", "run": run, "model": f"{baseline}, on the pixels"} | _scores(images)
        for (run, baseline), images in groups
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
                ratio = (100 - level[model]) / (100 - level[other])
                rows.append((question, label, model, other, level[model] - level[other], ratio))
    return DataFrame(rows, columns=[*PAIR, COMPARED, "error_ratio"]).assign(source="published", part="difference")


_SHORT = {"tokenformer-matched": "Tokenformer, size of the ViT", "tokenformer": "Tokenformer, a third larger",
          "grown-random-sqrt": "grown with random keys", "trained-on": "parent trained further, equal FLOPs",
          "tokenformer-small": "parent"}  # fmt: skip
"""Labels in the table for readers, where they differ from NAMES."""


def _by_question(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the pairs of the claims beside the published ratios, the models, and the pairs with a grown model. Without
    pairs, return all models.
    """
    if rows["source"].eq("published").any():
        return {}
    asked, trained = (rows.dropna(subset=name) for name in ("question", "parameters_non_embedding"))
    if asked.empty:
        return rows
    by_run = trained.set_index("run")
    names = by_run["model"].str.replace("( \\(| times n|[:;]).*", "", regex=True)
    names = pd.Series(_SHORT).reindex(names.index).fillna(names)
    for position, column in (("first", "run"), ("second", "compared_with")):
        labels = asked[column].map(names)
        asked[position] = labels.mask(
            asked["question"].eq(SCORES) & asked[column].eq("tokenformer"), "L2 norm, then GeLU"
        )
    paper = published_differences().assign(size=lambda pairs: pairs["run"].str.extract("-([BL])/")[0])
    ratios = paper.pivot_table("error_ratio", ["question", "model"], "size").add_prefix("published_ratio_")
    limits = map(error_ratio_limits().get, zip(asked["question"], asked["model"], strict=True))
    asked = asked.join(ratios, on=["question", "model"]).assign(
        needed=pd.Series(map(_needed, limits), asked.index, dtype=object)
    )
    columns = ["first", "second", *expand_columns(f"{COMPARED}[]+ error_ratio[]")]
    grown, claimed = asked["run"].str.startswith("grown-"), asked["question"].isin((SIZES, SCORES))
    shown = [*dict.fromkeys([*asked.loc[claimed | grown, ["run", "compared_with"]].to_numpy().ravel()])]
    printed = pd.concat(map(published_accuracies, PUBLISHED.values())).drop_duplicates("model").set_index("model")
    models = by_run.loc[shown].assign(model=names[shown]).reset_index()
    models["flops_of_training"] = models["flops_cumulative"]
    for size in "BL":
        of_run = {
            pair[side]: pair[side + 2].format(size) for pair in COMPARISONS[::-1] for side in (3, 2) if pair[side + 2]
        }
        models[f"published, {size}/16 (%) ↑"] = models["run"].map(of_run).map(printed["top1_percent"].astype(float))
    probe = rows[rows["parameters_non_embedding"].isna()].dropna(subset="top1_percent")
    models = pd.concat([models, probe]).sort_values("top1_percent", ascending=False)
    model_columns = ["model", "parameters_non_embedding", "flops_of_training", "top1_percent"]
    first = trained.iloc[0]
    settings = (
        f"{first['regime'].partition(', ')[0]}, {first['images']:,.0f} test images, {seed_count(trained['seeds'])}"
    )
    blocks = {
        f"errors of the first model / errors of the second\n{settings}": asked.loc[
            claimed, [*columns, *ratios, "needed", "verdict"]
        ],
        "growth (no claim)": asked.loc[grown, columns],
        "accuracy of the models": models[[*model_columns, *(name for name in models if "/16" in str(name))]],
    }
    return {name: block for name, block in blocks.items() if len(block)}


def error_ratio_limits() -> dict[tuple[str, str], float]:
    """Return the limits of claims by question and label: the largest ratio of error rates (first / second) that meets
    the claim. It is LARGEST_EQUAL_RATIO for the comparison with the ViT, which the whole interval must meet, and a
    quarter of the published change in the logarithm of the error rate (B/16) for other pairs, which the mean must meet.
    """
    published = published_differences().drop_duplicates(["question", "model"])  # B/16 is before L/16
    limits = {
        (str(row.question), str(row.model)): float(str(row.error_ratio)) ** 0.25
        for row in published.itertuples()
        if row.question in (SIZES, SCORES)
    }
    return limits | {COMPARISONS[0][:2]: LARGEST_EQUAL_RATIO}


def _needed(limit: float | None) -> str | None:
    if limit is None:
        return None
    return f"interval at most {limit:.3f}" if limit > 1 else f"interval below 1, mean at most {limit:.3f}"


def _answer(rows: DataFrame) -> str:
    row = first_row(rows, run=_AS_GOOD[0], compared_with=_AS_GOOD[1])
    if row is None:
        return ""
    ratio, points = (in_words(row, name) for name in ("error_ratio", COMPARED))
    answer = f"{answer_word(row)}{with_verdict(row)}: the Tokenformer makes {ratio} times the errors of the ViT"
    return f"{answer}; its accuracy is {points} points higher."


@table(reads="eval.csv test.csv floors.csv", published=published_differences, readers=_by_question, answer=_answer,
       columns="source regime question model run compared_with images parameters_non_embedding epochs top1_percent[] "
               "top1_points[]+ error_ratio[] split lead_nats[] -loss_nats[] -top5_percent -calibration_error "
               "-flops_cumulative seeds -diverged verdict")  # fmt: skip
def vision_table(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer as good as a ViT?

    - Top-1 accuracy, after Tables 2 and 4 of Tokenformer (arXiv:2410.23168; ImageNet). Models of scores have the size
    of the larger Tokenformer.
    - Brackets: 95 % interval over seeds, with the variance of similar runs.
    - Doubt: few epochs. The limit allows 5 % more errors than the ViT. The learning rate was searched for "L2 norm,
    then GeLU" alone, which favours it.
    """
    measured = accuracies(results, runs)
    texts = measured.set_index("run").get("read", pd.Series(dtype=str)).dropna()
    epochs = {run: json.loads(text)[-1]["epochs_cumulative"] for run, text in texts.items()}
    levels = models(measured).assign(epochs=lambda rows: rows["run"].map(epochs).round(1))
    levels = pd.concat([image_baselines(results, runs), levels], ignore_index=True)
    pairs = DataFrame([row[:4] for row in (*COMPARISONS, *FAIR, _FROM_SCRATCH)], columns=PAIR)
    pairs = pairs[pairs["run"].isin(measured["run"]) & pairs["compared_with"].isin(measured["run"])]
    pairs = with_difference(pairs, measured, "run", "compared_with", COMPARED, "top1_percent", results)
    pairs = with_pooled(pairs, results, STUDY, "run", "compared_with", COMPARED, "error_rate")
    reader, claims = claim_rows(results, STUDY), claim_verdicts(results, STUDY).items()
    columns = []
    for run, other in pairs[["run", "compared_with"]].to_numpy():
        ratio = pooled_estimate(reader, "error_ratio", {run: 1.0, other: -1.0}, "error_rate", logarithm=True)
        words = (verdict_cell(name, claim) for name, claim in claims if {run, other} <= claim.runs)
        columns.append({name: np.exp(value) for name, value in ratio.items()} | {"verdict": next(words, None)})
    pairs = pairs.join(DataFrame(columns, pairs.index))
    return pd.concat([levels, pairs, _lead(results, measured, epochs)], ignore_index=True)


def _lead(results: Results, measured: DataFrame, epochs: Mapping[Hashable, Any]) -> DataFrame:
    """Return the loss of the Tokenformer minus the loss of the ViT of equal size, in training and on test images."""
    run, rival = _AS_GOOD
    curves = validation_losses(results, STUDY, _AS_GOOD)
    if not {run, rival} <= {*measured["run"]} or curves.empty:
        return DataFrame()
    means = summarize(curves, "loss_nats", ["run", "step"], {run: rival}, "lead_nats").query("part == 'mean'")
    means = means.assign(split="validation", epochs=(means["step"] / means["step"].max() * epochs[run]).round(1))
    test = difference(measured, run, rival, "lead_nats")
    return pd.concat(
        [means[["split", "epochs", *test]], DataFrame([{"split": "test", "epochs": round(epochs[run], 1)} | test])]
    )
