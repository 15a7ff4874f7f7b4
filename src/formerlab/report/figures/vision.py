"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

import json
from functools import partial

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
from formerlab.report.style import BETTER, NARROW
from formerlab.report.tables import vision as tables
from formerlab.report.tables.cells import (
    claim_rows,
    claim_verdicts,
    claim_words,
    pooled_estimate,
    with_pooled,
)
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
"""Claims on the rows of `vision_accuracy` and `vision_scores`, with their short names."""
_SIZE_CLAIMS, _SCORE_CLAIMS = [*_CLAIMS][:2], [*_CLAIMS][2:]
_RATIO = "error_ratio"
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
    published = tables.published_differences()
    return pd.concat([ours, published[published["question"].isin(ours["question"])]], ignore_index=True)


def _points(measured: DataFrame, pairs: DataFrame, other: str, results: Results) -> DataFrame:
    """Return the differences in top-1 accuracy between the runs in the columns `run` and `other` of the pairs."""
    rows = differences(measured, pairs, "run", other, tables.COMPARED, "top1_percent", results)
    if rows.empty:
        return rows
    rows = with_pooled(rows, results, tables.STUDY, "run", other, tables.COMPARED, "error_rate")
    return _with_error_ratio(rows, measured, pairs, other, results)


def _with_error_ratio(
    rows: DataFrame, measured: DataFrame, pairs: DataFrame, other: str, results: Results
) -> DataFrame:
    """Return rows with the ratio of error rates, the Student interval of its seeds, and the interval of verdicts."""
    errors = measured.assign(_log_error=np.log((100 - measured["top1_percent"]).replace(0.0, np.nan)))
    ratios = differences(errors, pairs, "run", other, _RATIO, "_log_error")
    ends = expand_columns(f"{_RATIO}[]")
    rows = rows.merge(ratios.reindex(columns=[*pairs, "part", "seed", *ends]), "left", [*pairs, "part", "seed"])
    reader, means = claim_rows(results, tables.STUDY), rows.index[rows["part"].eq("mean")]
    pooled = DataFrame(
        [
            pooled_estimate(reader, f"{_RATIO}_pooled", {run: 1.0, compared: -1.0}, "error_rate", logarithm=True)
            for run, compared in rows.loc[means, ["run", other]].to_numpy()
        ],
        means,
        [f"{_RATIO}_pooled_{end}" for end in ("low", "high")],
    )
    rows = rows.join(pooled)
    logarithms = rows[[*ends, *pooled]].astype(float)
    rows[[*ends, *pooled]] = np.exp(logarithms)
    return rows


_ratios = partial(Panel, _RATIO, "_label", by="_series", kind="forest", facet="_question", zero=1.0, name="legend",
                  same_limits="x", finish=embolden_claims, xlabel=f"error rate, first / second\n({BETTER})"
)  # fmt: skip


def _notes(rows: DataFrame) -> list[str]:
    first, *others = seed_notes(rows) or [""]
    grounds = "green: meets the claim" + "; beige: the paper, on ImageNet" * bool(rows["source"].eq("published").any())
    return [f"{first.rstrip('.')}; {rows['_vit'].iloc[0]}{grounds}.", *others]


@plot(reads="test.csv floors.csv", draw=layout(
    _ratios(where={"_figure": "models"}), notes=_notes, columns=1, order="_rank", width=NARROW
))  # fmt: skip
def vision_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Error rates on test images (top-1) of pairs of models, first / second, after Table 2 of Tokenformer
    (arXiv:2410.23168), paired by seed. Hollow: the paper's values on ImageNet-1K, each from a single run. Dashed: limit
    of the claim, for ours and the paper. To see: whether a Tokenformer with as many parameters reaches the ViT. In the
    second row the paper's L/16 (0.9941) just meets the limit (0.9944). The CSV also has the pairs of vision_scores, the
    pairs with grown models, and the differences in points; vision_table is the same as a table.
    """
    return _rows(results, runs).assign(_claims=_claims(results, *_SIZE_CLAIMS))


@plot(reads="test.csv", needs="score-*", draw=layout(
    _ratios(where={"_figure": "scores"}), columns=1, order="_rank", width=NARROW,
    notes=lambda rows: [_notes(rows)[0][:-1] + "; bold: a claim uses the row.", *_notes(rows)[1:]],
))  # fmt: skip
def vision_scores(results: Results, runs: list[str]) -> DataFrame:
    """Error rates on test images (top-1) of Tokenformers with two scores, or two kinds of norms, first / second, after
    Table 4 of Tokenformer (arXiv:2410.23168), paired by seed. Hollow: the paper's values on ImageNet-1K, each from a
    single run. Dashed: limit of the claim, for ours and the paper. To see: whether exp is worse than GeLU, and how much
    the order of norm and GeLU changes. All scores have one learning rate.
    """
    rows = _rows(results, runs)
    if "_figure" not in rows:
        return rows[:0]
    columns = expand_columns(f"source part run compared_with seed model question {_RATIO}[]+ seeds verdict")
    columns += [f"{_RATIO}_limit", f"{_RATIO}_met"]
    hidden = [name for name in rows if str(name).startswith("_")]
    of_scores = rows["_figure"].eq("scores")
    return rows.loc[of_scores, [*columns, *hidden]].assign(_claims=_claims(results, *_SCORE_CLAIMS), _vit="")


def _claims(results: Results, *names: str) -> str:
    return claim_words(claim_verdicts(results, tables.STUDY), {name: _CLAIMS[name] for name in names})


def _rows(results: Results, runs: list[str]) -> DataFrame:
    """Return the accuracies of all models, the ratios of error rates of all pairs, and the published values of both."""
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
    of_vit = ours.loc[ours["run"].eq("vit"), "top1_percent"].map("{:.1f} %".format)
    rank = {pair[:2]: number for number, pair in enumerate((*tables.COMPARISONS, *tables.FAIR))}
    size, limits = rows["run"].str.extract("-([BL]/16)")[0], _limits(rows)
    claims = claim_verdicts(results, tables.STUDY)
    of_scores = rows["question"].isin((tables.SCORES, tables.NORMS))
    pairs = rows[["run", "compared_with"]].where(limits.notna()).to_numpy()
    words = [next((claim.word for claim in claims.values() if {*pair} <= claim.runs), None) for pair in pairs]
    names = rows["model"].str.replace(" minus ", " / ").str.replace("\nminus ", "\n/ ")
    needed = limits.groupby(names).transform("max").map(_needed, na_action="ignore").fillna("")
    return rows.assign(
        _rank=[rank.get(row, len(rank)) for row in zip(rows["question"], rows["model"], strict=True)],
        _label=names + needed,
        _question=rows["question"].mask(rows["question"].eq(tables.GROWTH)).str.replace(", minus ", ", over "),
        _figure=of_scores.map({True: "scores", False: "models"}),
        _series=("the paper, " + size).fillna("ours"),
        _style=rows["question"].map({tables.DEPTH: "DenseFormer 1x1"}).fillna("Tokenformer"),
        _marker=size.map({"B/16": "o", "L/16": "D"}),
        verdict=Series(words, rows.index, dtype=object),
        _vit="".join(f"top-1 of the ViT: {level}; " for level in of_vit[:1]),
        **{f"{_RATIO}_limit": limits, f"{_RATIO}_met": limits.where(limits.isna(), -np.inf)},
    )


@plot(reads="eval.csv", runs="vit tokenformer-matched", needs="tokenformer-matched", draw=layout(
    Panel("epoch", "validation_minus_vit_nats", by="_series", kind="line", zero=0.0, name="none", xlabel="epoch",
          ylabel="validation loss, Tokenformer\nminus ViT (nats; below 0: better)"),
    notes=lambda rows: [f"{seed_count(rows['seeds'])} (dots); bars: 95 % Student t interval of these seeds; "
                        "the paper trains for 300 epochs (B/16) or 200 (L/16)."],
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


def _needed(limit: float) -> str:
    """Return what a claim needs, in the words of the marks."""
    if limit > 1:
        return f"\nneeded: thick bar\nleft of {limit:.2f}"
    return f"\nneeded: square left of\n{limit:.4f}, thick bar\nleft of 1"


def _limits(rows: DataFrame) -> Series:
    """Return the limits of claims, as ratios of error rates (`tables.error_ratio_limits`)."""
    keys = zip(rows["question"], rows["model"], strict=True)
    limits = Series([*map(tables.error_ratio_limits().get, keys)], rows.index, dtype=float)
    return limits.where(rows["part"].eq("difference"))
