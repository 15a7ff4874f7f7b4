"""Scores of the translation study, of its tables and figures (arXiv:1706.03762)."""

import re

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import stats

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.catalogue import expand_columns, table
from formerlab.report.published import TRANSFORMER, published, published_rows
from formerlab.report.runs import (
    difference,
    held_out_losses,
    last_step_rows,
    load_runs,
    means_by_run,
    validation_losses,
)
from formerlab.report.tables.blocks import by_regime, with_pooled
from formerlab.results.read import Results

STUDY = "transformer"
SCORES = ("loss_nats", *METRICS, "exact_percent")


def scores(results: Results, split: str) -> DataFrame:
    """Return corpus BLEU by every metric, and the percentage of exact translations, by run and seed."""
    rows, sentences = (results.rows(file, STUDY) for file in ("bleu.csv", "translate.csv"))
    keys = ["run", "seed", "metric"]
    sums = rows[rows["split"] == split].reindex(columns=[*keys, *STATISTICS]).groupby(keys).sum()
    bleu = pd.Series([float(corpus_bleu(counts)) for counts in sums.to_numpy(float)], sums.index, dtype=float)
    exact = sentences[sentences["split"] == split].groupby(["run", "seed"])["exact"].mean()
    return bleu.unstack("metric").assign(exact_percent=100 * exact).reindex(columns=[*METRICS, "exact_percent"])


def over_seeds(results: Results, split: str, runs: list[str]) -> DataFrame:
    """Return one row per run: the means over seeds of losses and scores with Student intervals, and its record.

    Losses are in nats per target token, never smoothed. The split `test` is measured with the final weights; `valid`
    after the last step, before any average of snapshots.
    """
    records = load_runs(results, STUDY, runs)
    read = (
        held_out_losses(results, STUDY, runs)
        if split == "test"
        else last_step_rows(validation_losses(results, STUDY, runs))
    )
    measured = read.set_index(["run", "seed"])[["loss_nats"]].join(scores(results, split))
    return means_by_run(records.join(measured, on=["run", "seed"]), SCORES, first=records.columns)


def complexity(results: Results, runs: list[str]) -> DataFrame:
    """Return the measured points of the first run that has them."""
    rows = results.rows("complexity.csv", STUDY, runs)
    chosen: DataFrame = rows[rows[["run", "seed"]].eq(rows[["run", "seed"]].iloc[0]).all(axis=1)] if len(rows) else rows
    return chosen


_SPEC = {"layers": "N", "width": "d_model", "heads": "h", "d_key": "d_k", "dropout": "P_drop"}
_SETTINGS = {f"spec.model.{key}": name for key, name in _SPEC.items()}
_SETTINGS |= {"spec.task.label_smoothing": "smoothing", "spec.model.position.kind": "positions"}
_ROWS = ("base", "heads", "key", "layers", "width", "hidden", "dropout", "smoothing", "positions", "big")


_WORDS = {r"\bh =": "heads h =", "P_drop": "dropout", "smoothing": "label smoothing", "positions = ": "positions "}


def _changes(ours: DataFrame) -> list[str]:
    """Return the settings of each run that differ from the base model's, such as `h = 1`; empty for the base model."""
    settings = ours.rename(columns=_SETTINGS).reindex(columns=[*_SETTINGS.values()])
    base = settings[ours["run"].isin(["base", "settled-base"])].head(1).to_dict("records")
    return [
        ", ".join(f"{key} = {row[key]}" for old in base for key in old if str(row[key]) != str(old[key]))
        for row in settings.to_dict("records")
    ]


def _named(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return rows with the model in the first column: for ours, the change from the base model, in blocks."""
    if rows["source"].eq("published").any():
        return rows.rename(columns={"run": "model"})
    averaged = rows["run"].str.contains("averaged").map({True: ", averaged checkpoints", False: ""})
    change = rows["change"].str.replace(r"\.0$", "", regex=True).where(rows["change"].ne(""), "base")
    change = change.replace(_WORDS, regex=True)
    return by_regime(DataFrame({"model": change + averaged}).join(rows.drop(columns="change")))


def _published_bleu() -> DataFrame:
    rows = published(TRANSFORMER, "Table 2")
    languages = rows["setting"].str.extract(r"(En-\w+)", expand=False).str.lower().str.replace("-", "_")
    rows = rows.assign(column=rows["metric"].replace("training_cost", "flops") + "_" + languages)
    rows["value"] = rows["value"].astype(float)
    return (
        rows.pivot(index="model", columns="column", values="value").loc[rows["model"].unique()].reset_index(names="run")
    )


def _minus_base(ours: DataFrame, results: Results, split: str, runs: list[str]) -> DataFrame:
    """Return our rows with the changes from the base model, and the differences of loss and BLEU to it by seed."""
    losses = held_out_losses(results, STUDY, runs)
    if split == "valid":
        losses = last_step_rows(validation_losses(results, STUDY, runs))
    measured = losses.join(scores(results, split)[["sacrebleu"]], on=["run", "seed"])
    for column, name in (("loss_nats", "loss_minus_base_nats"), ("sacrebleu", "bleu_minus_base")):
        gaps = DataFrame([difference(measured, run, "base", name, column) for run in ours["run"]])
        ours = ours.join(gaps.reindex(columns=expand_columns(f"{name}[]")))
    ours = ours.assign(change=_changes(ours), base="base")
    return with_pooled(ours, results, STUDY, "run", "base", "loss_minus_base_nats") if split == "test" else ours


@table(reads="test.csv translate.csv bleu.csv", published=_published_bleu,
       readers=_named, columns="source run change -data regime sacrebleu[] bleu_minus_base[] -compound_split "
               "-tokenized_lowercase -exact_percent bleu_en_de bleu_en_fr flops_en_de flops_en_fr perplexity "
               "loss_minus_base_nats[]+ -parameters flops seeds")  # fmt: skip
def transformer_bleu(results: Results, runs: list[str]) -> DataFrame:
    """BLEU on the test sentences, after Table 2 of arXiv:1706.03762 (Attention Is All You Need). Ours translate German
    to English. Differences are to the base model, paired by seed. In brackets: 95 % Student t interval over seeds. BLEU
    is sacreBLEU (13a). Perplexity and loss are per word piece. Published: training cost, and BLEU with compounds split,
    which gives up to 1.5 more. Scores of another data set or language pair do not compare.
    """
    ours = over_seeds(results, "test", runs).rename(columns={"data.name": "data"})
    return _minus_base(ours, results, "test", runs)


@table(reads="eval.csv test.csv translate.csv bleu.csv",
       published=lambda: published_rows(
           TRANSFORMER, "Table 3", names={"model": "run", "perplexity_per_wordpiece": "perplexity"},
           factors={"parameters": 1e6}).assign(
               loss_minus_base_nats=lambda rows: np.log(rows["perplexity"] / rows["perplexity"].iloc[0]),
               bleu_minus_base=lambda rows: rows["bleu"] - rows["bleu"].iloc[0]),
       readers=_named, columns="source run regime change -N -d_model -h -d_k -P_drop -smoothing -positions "
               "-loss_nats[] perplexity loss_minus_base_nats[] sacrebleu bleu bleu_minus_base[] parameters seeds"
       )  # fmt: skip
def transformer_variations(results: Results, runs: list[str]) -> DataFrame:
    """Variations of the base Transformer on the development split, after Table 3 of arXiv:1706.03762 (Attention Is All
    You Need): (A) heads h, (B) key width d_k, (C) size, (D) dropout and label smoothing, (E) learned positions. Ours
    translate German to English, the paper English to German. Differences are to the base model, paired by seed. In
    brackets: 95 % Student t interval over seeds. Loss and perplexity are per word piece, without label smoothing, after
    the last step. Compare differences. transformer_bleu has the test split, and the pooled intervals.
    """
    ours = over_seeds(results, "valid", runs).rename(columns=_SETTINGS)
    order = ours["run"].str.split("-").str[0].map({name: number for number, name in enumerate(_ROWS)})
    ours = ours.assign(order=order).sort_values(["regime", "order", "run"], ignore_index=True)
    return _minus_base(ours, results, "valid", runs)


THEORY = DataFrame(
    [
        ("self_attention", 2, 1, "O(n^2 d)", "O(1)", "O(1)"),
        ("recurrent", 1, 2, "O(n d^2)", "O(n)", "O(n)"),
        ("convolution", 1, 2, "O(k n d^2)", "O(1)", "O(log_k n)"),
        ("restricted", 1, 1, "O(r n d)", "O(1)", "O(n/r)"),
    ],
    columns=["layer", "counted_exponent_n", "counted_exponent_d", "complexity", "sequential", "longest_path"],
)
"""Exponents of n and d, complexity, sequential operations and maximum path length as published."""


_LAYERS = {"self_attention": "self-attention", "restricted": "self-attention in a window of r"}


def slope(points: DataFrame, axis: str, column: str) -> tuple[float, float]:
    """Return the least-squares slope of ln(column) on ln(axis), and its standard error (NaN for fewer points)."""
    if points[axis].nunique() < 2:
        return float("nan"), float("nan")
    fit = stats.linregress(np.log(points[axis].astype(float)), np.log(points[column].astype(float)))
    return float(fit.slope), float(fit.stderr) if len(points) > 2 else float("nan")


def _ranges(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return rows with labels, below a heading with the measured range."""
    rows = rows.replace({"layer": _LAYERS})
    if rows["source"].eq("published").any():
        return rows
    blocks = {}
    for axis, word in (("n", "length"), ("d", "width")):
        columns = [name for name in rows if re.search(f"_exponent_{axis}(_se)?$", str(name))]
        more = ["longest_path"] if axis == "n" else []
        blocks[f"growth with the {word} {axis} = {rows[axis].iloc[0]}"] = rows[["layer", *columns, *more]]
    return blocks


@table(reads="complexity.csv", published=lambda: THEORY, readers=_ranges)
def transformer_layers(results: Results, runs: list[str]) -> DataFrame:
    """How the cost of four layer types grows with length n and width d, after Table 1 of arXiv:1706.03762 (Attention Is
    All You Need). An exponent is the slope of the logarithm of multiply-adds, time or memory on the logarithm of n or
    d; 2 means that doubling n costs four times as much. Counted exponents should equal the published ones. Times follow
    them only if the operation is large. After ±: the standard error of the slope. As in the paper, the projections of
    self-attention, O(n d^2), are not counted. The longest path between two positions is measured at the largest n.
    """
    ours = []
    for name, group in complexity(results, runs).groupby("operation", sort=False):
        row: dict[str, object] = {"layer": name}
        for axis in ("n", "d"):
            points = group[group["axis"] == axis]
            row[axis] = f"{points[axis].min()} to {points[axis].max()}"
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"], error = slope(points, axis, column)
                if label != "counted":
                    row[f"{label}_exponent_{axis}_se"] = error
        ours.append(row | {"longest_path": int(group["path"].max())})
    return DataFrame(ours)
