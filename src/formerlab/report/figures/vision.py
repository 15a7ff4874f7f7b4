"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

import json

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.marks import embolden_claims
from formerlab.report.panel import Panel, layout
from formerlab.report.runs import (
    differences,
    differences_by_step,
    load_runs,
    seed_count,
    seed_notes,
    validation_losses,
)
from formerlab.report.style import NARROW
from formerlab.report.tables import vision as tables
from formerlab.report.tables.cells import claim_verdicts, claim_words, with_pooled
from formerlab.results.read import Results

GROUPS = {
    "sizes": "vit vit-wider tokenformer-matched tokenformer",
    "scores": "score-exp-l1 score-gelu-l1 score-gelu-l2",
    "norms": "norm-bias norm-gain-bias",
    "growth": "tokenformer-small tokenformer-short trained-on grown-random-sqrt grown-zero-keep",
    "depth": "vit-dwa tokenformer-dwa",
    "floor": "",
}
"""Groups of runs that answer one question."""
_CLAIMS = {
    "vision-matches-vit-equal-parameters": "not worse than the ViT at equal parameters",
    "vision-more-tokens-help": "more tokens help",
    "vision-gelu-over-exp": "GeLU beats exp",
    "vision-l2-over-l1": "L2 beats L1",
}
"""Claims on the rows of `vision_accuracy`, with their short names."""
_COLUMNS = expand_columns("source part group run seed model top1_percent[] seeds diverged")


def _differences(measured: DataFrame, results: Results) -> DataFrame:
    """Return the differences listed in COMPARISONS and FAIR, the differences of all other models from the ViT, and the
    published differences.
    """
    asked = DataFrame([row[:4] for row in (*tables.COMPARISONS, *tables.FAIR)], columns=tables.PAIR)
    in_groups = {*asked["run"], *asked["compared_with"], *(run for names in GROUPS.values() for run in names.split())}
    models = tables.models(measured)
    others = models[~models["run"].isin(in_groups)].assign(question=tables.OTHER, compared_with="vit")
    pairs = pd.concat([asked, others[tables.PAIR]], ignore_index=True)
    ours = _points(measured, pairs, "compared_with", results)
    if ours.empty:
        return ours
    ours["part"] = ours["part"].replace("mean", "difference")
    published = tables.published_differences().drop(columns="error_ratio")
    return pd.concat([ours, published[published["question"].isin(ours["question"])]], ignore_index=True)


def _points(measured: DataFrame, pairs: DataFrame, other: str, results: Results) -> DataFrame:
    """Return the differences in top-1 accuracy between the runs in the columns `run` and `other` of the pairs."""
    rows = differences(measured, pairs, "run", other, tables.COMPARED, "top1_percent", results)
    if rows.empty:
        return rows
    return with_pooled(rows, results, tables.STUDY, "run", other, tables.COMPARED, "error_rate")


@plot(reads="test.csv floors.csv", draw=layout(
    Panel(tables.COMPARED, "_label", by="_series", kind="forest", facet="_question", zero=0.0, name="legend",
          same_limits="x", finish=embolden_claims, xlabel="top-1 (points; right is better)"),
    notes=lambda rows: [note.rstrip(".") + "; bold: a claim uses the row; green: range that meets the claim."
                        for note in seed_notes(rows)[:1]] + seed_notes(rows)[1:],
    columns=1, order="_rank"
))  # fmt: skip
def vision_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Differences in top-1 accuracy on test images, after Tables 2 and 4 of Tokenformer (arXiv:2410.23168), a panel for
    each question, paired by seed; right of zero is better. Hollow: the paper's values on ImageNet-1K, each from a
    single run. Claims are about ratios of error rates; the limit is computed at the error rate of the model that is
    subtracted. A model is not worse than the ViT if its interval is in the range; a change helps if its mean is in the
    range and its interval is right of zero. To see: whether a Tokenformer with as many parameters reaches the ViT, and
    whether exp is worse than GeLU. The accuracies, and pairs with grown models, are in the CSV and in the table
    vision_table.
    """
    measured = tables.accuracies(results, runs)
    groups = {run: name for name, names in GROUPS.items() for run in names.split()}
    ours = tables.models(measured).assign(part="mean")
    seeds = measured[["run", "seed", "top1_percent"]].merge(ours[["source", "run", "model"]], on="run")
    ours = pd.concat([ours, seeds.assign(part="seed")], ignore_index=True)
    ours = ours.assign(group=ours["run"].map(groups).fillna("other"))
    lowest = tables.image_baselines(results, runs).assign(group="floor", part="mean")
    published = [tables.published_accuracies(table).assign(group=name) for name, table in tables.PUBLISHED.items()]
    printed = pd.concat(published).assign(source="published")
    levels = pd.concat([ours, lowest, printed], ignore_index=True).reindex(columns=_COLUMNS)
    rows = pd.concat([levels, _differences(measured, results)], ignore_index=True)
    if "question" not in rows:
        return levels
    rank = {pair[:2]: number for number, pair in enumerate((*tables.COMPARISONS, *tables.FAIR))}
    size, limits = rows["run"].str.extract("-([BL]/16)")[0], _limits(rows)
    claims = claim_verdicts(results, tables.STUDY).values()
    pairs = rows[["run", "compared_with"]].where(limits.notna()).to_numpy()
    words = [next((claim.word for claim in claims if {*pair} <= claim.runs), None) for pair in pairs]
    return rows.assign(
        _rank=[rank.get(row, len(rank)) for row in zip(rows["question"], rows["model"], strict=True)],
        _label=rows["model"].str.replace("\n", " "),
        _question=rows["question"].mask(rows["question"].eq(tables.GROWTH)),
        _series=("the paper, " + size).fillna("ours"),
        _style=rows["question"].map({tables.DEPTH: "DenseFormer 1x1"}).fillna("Tokenformer"),
        _marker=size.map({"B/16": "o", "L/16": "D"}),
        verdict=Series(words, rows.index, dtype=object),
        _claims=claim_words(results, tables.STUDY, _CLAIMS),
        **{f"{tables.COMPARED}_limit": limits, f"{tables.COMPARED}_met": limits.where(limits.isna(), np.inf)},
    )


@plot(reads="eval.csv", runs="vit tokenformer-matched", needs="tokenformer-matched", draw=layout(
    Panel("epoch", "validation_minus_vit_nats", by="_series", kind="line", zero=0.0, name="none", xlabel="epoch",
          ylabel="validation loss minus\nloss of the ViT (nats)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars: 95 % Student t interval of these seeds; below 0, "
                        "the Tokenformer is better."],
    columns=1, width=NARROW
))  # fmt: skip
def vision_training(results: Results, runs: list[str]) -> DataFrame:
    """Validation loss of the Tokenformer minus the loss of a ViT with as many parameters during training, from the
    second epoch on; paired by seed. To see: whether the lead shrinks, so that longer training could reverse it.
    """
    curves = validation_losses(results, tables.STUDY, runs)
    read = load_runs(results, tables.STUDY, runs)["read"].dropna()
    pair = DataFrame({"run": ["tokenformer-matched"], "compared_with": "vit"})
    rows = differences_by_step(curves[curves["step"] > 0], pair, "run", "compared_with", "validation_minus_vit_nats")
    if rows.empty or read.empty:
        return DataFrame()
    epochs = rows["step"] / rows["step"].max() * json.loads(read.iloc[0])[-1]["epochs_cumulative"]
    return rows.assign(epoch=epochs.round(1), _series="ours", _style="Tokenformer").query("epoch >= 2")


LARGEST_EQUAL_RATIO = 1.05
"""Ratio of error rates up to which the claim calls a Tokenformer as good as the ViT."""


def _limits(rows: DataFrame) -> Series:
    """Return the limits of claims in points of accuracy: a quarter of the published change in the logarithm of the
    error rate, or LARGEST_EQUAL_RATIO for the comparison with the ViT.
    """
    levels = rows[rows["part"].eq("mean") | rows["source"].eq("published")].dropna(subset="top1_percent")
    errors = 100 - levels.set_index(levels["run"].fillna(levels["model"]))["top1_percent"].astype(float)
    errors, limits = errors[~errors.index.duplicated()], {}
    for question, label, _, other, *models in tables.COMPARISONS:
        model, reference = (name.format("B") for name in models)
        if question in (tables.SIZES, tables.SCORES) and {other, model, reference} <= {*errors.index}:
            ratio = 1 / LARGEST_EQUAL_RATIO if other == "vit" else (errors[reference] / errors[model]) ** 0.25
            limits[question, label] = errors[other] * (1 - 1 / ratio)
    keys = zip(rows["question"], rows["model"], strict=True)
    return Series([limits.get(key) for key in keys], rows.index, dtype=float).where(rows["part"].eq("difference"))
