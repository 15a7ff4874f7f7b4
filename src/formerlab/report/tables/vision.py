"""Accuracy of the vision study, for its tables and figures (Tokenformer, arXiv:2410.23168, section 4.2).

The baseline of all tables, the linear probe, is logistic regression on the pixels.
"""

import json
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.registry import ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.published import TOKENFORMER, published_rows
from formerlab.report.runs import (
    baselines,
    difference,
    load_runs,
    means_by_run,
    summarize,
    validation_losses,
    with_difference,
)
from formerlab.report.tables.blocks import (
    claim_verdicts,
    first_row,
    in_words,
    pooled_estimate,
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
SIZES, SCORES, _NORMS = "Size (Table 2)", "Score (Table 4)", "Norms, minus gain and bias"
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
    (_NORMS, "bias alone", "norm-bias", "norm-gain-bias", f"{_WITH_NORM}bias only", f"{_WITH_NORM}gain and bias"),
    (_NORMS, "no parameters", "tokenformer", "norm-gain-bias", f"{_WITH_NORM}none", f"{_WITH_NORM}gain and bias"),
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
"""Comparisons of equal FLOPs that the table adds."""
_AS_GOOD = ("tokenformer-matched", "vit")
_AS_IN_PAIR = (_AS_GOOD, ("tokenformer", "norm-gain-bias"))
"""Pairs whose claim is about the first error over the second; the claims on other pairs are about the inverse."""
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
    """Return a row per baseline and data set, with the metrics of its images."""
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
                ratio = (100 - level[model]) / (100 - level[other])
                rows.append((question, label, model, other, level[model] - level[other], ratio))
    return DataFrame(rows, columns=[*PAIR, COMPARED, "error_ratio"]).assign(source="published", part="difference")


def _by_question(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the models with letters, then the differences of pairs with our and published error ratios."""
    if rows["source"].eq("published").any():
        return {}
    lead = rows[rows["split"].notna()] if "split" in rows else rows[:0]
    rows = rows.drop(lead.index)
    levels = rows[rows["question"].isna()].sort_values("top1_percent", ascending=False)
    variant = levels["run"].str.startswith(("score-", "norm-", "grown-", "trained-on", "tokenformer-s"), na=False)
    letters = [chr(ord("A") + place) for place in range(len(levels))]
    levels = levels.assign(letter=letters, model=variant.map({True: "Tokenformer, ", False: ""}) + levels["model"])
    letter = levels.set_index("run")["letter"]
    text = levels["regime"].str.partition(", ")[0].replace("", np.nan).dropna().iloc[0]
    images = f"{text}, {levels['images'].max():,.0f} test images"
    levels = levels[
        ["letter", "model", "parameters_non_embedding", "epochs", *expand_columns("top1_percent[]"), "seeds"]
    ]
    blocks = {f"models; {images}": levels}
    asked = rows.dropna(subset="question")
    asked = asked[
        asked["question"].ne(GROWTH) | asked["compared_with"].eq("trained-on") | asked["run"].eq("trained-on")
    ]
    if asked.empty:
        return blocks
    pair = [letter[[run, other]].tolist() for run, other in asked[["run", "compared_with"]].to_numpy()]
    inverse = [names not in _AS_IN_PAIR for names in asked[["run", "compared_with"]].itertuples(index=False, name=None)]
    asked = asked.assign(
        minus=[" minus ".join(names) for names in pair],
        errors=[" / ".join(names[::-1] if turned else names) for names, turned in zip(pair, inverse, strict=True)],
    )
    theirs = published_differences().set_index(["question", "model"])
    sizes = theirs["run"].str.extract("-([BL])/")[0]
    for size in "BL":
        ratios = theirs.loc[sizes == size, "error_ratio"].reindex(asked.set_index(["question", "model"]).index)
        asked[f"error_ratio_{size.lower()}"] = ratios.to_numpy()
    turned, ends = asked.loc[inverse], expand_columns("error_ratio[]")
    asked.loc[inverse, ends] = 1 / turned[[ends[0], *ends[:0:-1]]].to_numpy()
    asked.loc[inverse, ["error_ratio_b", "error_ratio_l"]] = 1 / turned[["error_ratio_b", "error_ratio_l"]]
    names = asked["model"].replace({
        "parent trained further,\nequal FLOPs": "parent trained further minus parent",
    })  # fmt: skip
    columns = [*expand_columns(f"{COMPARED}[]+"), "errors", *ends, "error_ratio_b", "error_ratio_l", "verdict"]
    blocks["pairs"] = asked.assign(comparison=names.str.replace("\n", " "))[["minus", "comparison", *columns]]
    if len(lead):
        blocks["loss of the Tokenformer of equal size minus the ViT; brackets: own seeds alone"] = lead[
            ["split", "epochs", *expand_columns("lead_nats[]")]
        ]
    return blocks


def _answer(rows: DataFrame) -> str:
    row = first_row(rows, run=_AS_GOOD[0], compared_with=_AS_GOOD[1])
    if row is None:
        return ""
    return (
        f"The Tokenformer of equal size minus the ViT: {in_words(row, COMPARED)} points, error ratio "
        f"{in_words(row, 'error_ratio')}{with_verdict(row)}."
    )


@table(reads="eval.csv test.csv floors.csv", published=published_differences, readers=_by_question, answer=_answer,
       columns="source regime question model run compared_with images parameters_non_embedding epochs top1_percent[] "
               "top1_points[]+ error_ratio[] split lead_nats[] -loss_nats[] -top5_percent -calibration_error "
               "-flops_cumulative seeds -diverged verdict")  # fmt: skip
def vision_table(results: Results, runs: list[str]) -> DataFrame:
    """Is a Tokenformer as good as a ViT?

    - Top-1 accuracy; pairs by seed, error ratios as in the claims, after Tables 2, 4 and 5 of Tokenformer
    (arXiv:2410.23168; B/16 and L/16 on ImageNet).
    - Brackets: 95 % interval over seeds; for pairs, it includes the variance of similar runs.
    - Doubt: ten epochs, one learning rate, which favours models that learn fast.
    """
    measured = accuracies(results, runs)
    texts = measured.set_index("run").get("read", pd.Series(dtype=str)).dropna()
    epochs = {run: json.loads(text)[-1]["epochs_cumulative"] for run, text in texts.items()}
    levels = models(measured).assign(epochs=lambda rows: rows["run"].map(epochs).round(1))
    levels = pd.concat([image_floors(results, runs), levels], ignore_index=True)
    pairs = DataFrame([row[:4] for row in (*COMPARISONS, *FAIR)], columns=PAIR)
    pairs = pairs[pairs["run"].isin(measured["run"]) & pairs["compared_with"].isin(measured["run"])]
    if pairs.empty:
        return levels
    pairs = with_difference(pairs, measured, "run", "compared_with", COMPARED, "top1_percent", results)
    pairs = with_pooled(pairs, results, STUDY, "run", "compared_with", COMPARED, "error_rate")
    reader, claims = ClaimRows(results, STUDY, ClaimArms()), claim_verdicts(results, STUDY).values()
    models_of_pairs = pairs[["run", "compared_with"]].to_numpy()
    signs = [{a: 1.0, b: -1.0} for a, b in models_of_pairs]
    ratios = [pooled_estimate(reader, "error_ratio", pair, "error_rate", logarithm=True) for pair in signs]
    words = [next((claim.word for claim in claims if {*pair} <= claim.runs), None) for pair in models_of_pairs]
    pairs = pairs.assign(verdict=pd.Series(words, pairs.index, dtype=object)).join(
        DataFrame(np.exp(DataFrame(ratios, pairs.index)))
    )
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
