"""Scores of the translation study, for its tables and figures (arXiv:1706.03762)."""

import re

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import stats

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.catalogue import table
from formerlab.report.published import TRANSFORMER, published, published_rows
from formerlab.report.runs import (
    held_out_losses,
    last_step_rows,
    load_runs,
    means_by_run,
    validation_losses,
    with_difference,
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


LABELS = {
    "^settled-": "", "^heads-1$": "one head", "^heads-": "heads h = ", "^key-": "key width = ",
    "^layers-": "layers N = ", "^width-": "width = ", "^hidden-": "feed-forward width = ",
    "^dropout-0": "no dropout", r"^dropout-(\d)": r"dropout 0.\1", "^smoothing-0": "no label smoothing",
    r"^smoothing-(\d)": r"label smoothing 0.\1", r"^positions-(\w+)": r"\1 positions",
    "-averaged": ", averaged checkpoints",
}  # fmt: skip
"""Labels of the parts of run names that name a change from the base model, by pattern."""
_TABLE_3 = {
    r"\(A\) h=(\d+) .*": r"heads-\1", r"\(B\) dk=": "key-", r"\(C\) N=": "layers-", r"\(C\) d=(\d+) .*": r"width-\1",
    r"\(C\) ff=": "hidden-", r"\(D\) dropout (0\.)?": "dropout-", r"\(D\) label smoothing (0\.)?": "smoothing-",
    r"\(E\) .*": "positions-learned", "big .*": "big",
}  # fmt: skip
"""Our run with the same change, by row of Table 3 of the paper (patterns)."""


def published_variations() -> DataFrame:
    """Return the rows of Table 3 with their differences to its base model; `run` is our run with the same change."""
    names = {"model": "change", "perplexity_per_wordpiece": "perplexity"}
    rows = published_rows(TRANSFORMER, "Table 3", names=names, factors={"parameters": 1e6})
    return rows.assign(
        run=rows["change"].replace(_TABLE_3, regex=True),
        published_nats=np.log(rows["perplexity"] / rows["perplexity"].iloc[0]),
        published_bleu=rows["bleu"] - rows["bleu"].iloc[0],
    )


def _with_published(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the differences to the base model, each beside the published one."""
    if rows["source"].eq("published").any():
        return {}
    theirs = published_variations().set_index("run")
    rows = rows[~rows["run"].str.endswith("base")]
    rows = rows.assign(**{name: rows["run"].map(theirs[name]) for name in ("published_nats", "published_bleu")})
    rows = rows.rename(columns=lambda name: re.sub("^bleu_minus_base", "development_bleu_minus_base", name))
    blocks = by_regime(rows.drop(columns=["perplexity", "parameters"]).sort_values("test_minus_base_nats"))
    blocks = blocks if isinstance(blocks, dict) else {"": blocks}
    return {f"minus the base model; {regime}": block for regime, block in blocks.items()}


def _published_bleu() -> DataFrame:
    rows = published(TRANSFORMER, "Table 2")
    languages = rows["setting"].str.extract(r"(En-\w+)", expand=False).str.lower().str.replace("-", "_")
    rows = rows.assign(column=rows["metric"].replace("training_cost", "flops") + "_" + languages)
    rows["value"] = rows["value"].astype(float)
    return (
        rows.pivot(index="model", columns="column", values="value").loc[rows["model"].unique()].reset_index(names="run")
    )


def _minus_base(ours: DataFrame, measured: DataFrame, **names: str) -> DataFrame:
    """Return our rows with a label and, for each `column=metric` in `names`, the metric minus the metric of the base
    model, paired by seed.
    """
    settled = ours["run"].str.startswith("settled-")
    ours = ours.assign(base=settled.map({True: "settled-base", False: "base"}))
    for name, value in names.items():
        ours = with_difference(ours, measured, "run", "base", name, value)
    return ours.assign(change=ours["run"].replace(LABELS, regex=True))


def _scored(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return our models, best first, or the published ones with the printed digits."""
    if rows["source"].eq("ours").all():
        return by_regime(rows.sort_values("sacrebleu", ascending=False))
    scores = {name: rows[name].map("{:g}".format, na_action="ignore") for name in ("bleu_en_de", "bleu_en_fr")}
    return rows.rename(columns={"run": "model"}).assign(**scores)


@table(reads="test.csv translate.csv bleu.csv", published=_published_bleu, readers=_scored,
       columns="source run change -data regime sacrebleu[] bleu_minus_base[] -compound_split -tokenized_lowercase "
               "-exact_percent bleu_en_de bleu_en_fr flops_en_de flops_en_fr perplexity -parameters tokens flops seeds"
       )  # fmt: skip
def transformer_bleu(results: Results, runs: list[str]) -> DataFrame:
    """How well do the models translate, and at what cost? BLEU on the test sentences, after Table 2 of arXiv:1706.03762
    (Attention Is All You Need). Ours translate German to English: BLEU is sacreBLEU (13a), the difference to the base
    model is paired by seed, and perplexity is per word piece. Base has four heads. In brackets: 95 % Student t interval
    over seeds. Published: BLEU with compounds split, which gives up to 1.5 more, and training cost. Scores of another
    data set or language pair do not compare.
    """
    ours = over_seeds(results, "test", runs).rename(columns={"data.name": "data"})
    measured = held_out_losses(results, STUDY, runs).join(scores(results, "test")[["sacrebleu"]], on=["run", "seed"])
    return _minus_base(ours, measured, bleu_minus_base="sacrebleu")


@table(reads="eval.csv test.csv translate.csv bleu.csv", published=published_variations, readers=_with_published,
       columns="source run change regime test_minus_base_nats[]+ loss_minus_base_nats[] published_nats "
               "bleu_minus_base[] published_bleu perplexity -loss_nats[] -sacrebleu -bleu parameters tokens seeds"
       )  # fmt: skip
def transformer_variations(results: Results, runs: list[str]) -> DataFrame:
    """Which changes of the base Transformer help? Differences to the base model, paired by seed, after Table 3 of
    arXiv:1706.03762 (Attention Is All You Need); below zero, the loss is lower. Ours translate German to English, the
    paper English to German, both on the development split, ours also on the test split. Loss is per word piece, without
    label smoothing, at the end of training. In brackets: 95 % interval over seeds, for the test split with the variance
    of similar runs, as for verdicts. Our models were still learning when training ended, so a change that learns faster
    has the lower loss, and no row has a verdict. Our base has four heads, the paper's eight. Perplexities, and rows of
    the paper that were not run, are in the CSV.
    """
    ours, keys = over_seeds(results, "valid", runs), ["run", "seed"]
    measured = last_step_rows(validation_losses(results, STUDY, runs)).join(scores(results, "valid"), on=keys)
    test = held_out_losses(results, STUDY, runs).set_index(keys)["loss_nats"].rename("test_nats")
    names = {"test_minus_base_nats": "test_nats", "loss_minus_base_nats": "loss_nats", "bleu_minus_base": "sacrebleu"}
    ours = _minus_base(ours, measured.join(test, on=keys), **names)
    return with_pooled(ours, results, STUDY, "run", "base", "test_minus_base_nats")


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
    """Return the least-squares slope of ln(column) on ln(axis), and its standard error.

    Both are NaN for fewer than two distinct values of the axis; the error is NaN for fewer than three points.
    """
    if points[axis].nunique() < 2:
        return float("nan"), float("nan")
    fit = stats.linregress(np.log(points[axis].astype(float)), np.log(points[column].astype(float)))
    return float(fit.slope), float(fit.stderr) if len(points) > 2 else float("nan")


def _ranges(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the exponents of n and of d beside the published cost, below a heading with the measured range."""
    if rows["source"].eq("published").any():
        return {}
    theory = THEORY.rename(columns={"longest_path": "published path"})
    rows = rows.drop(columns="complexity").merge(theory[["layer", "complexity", "published path"]], on="layer")
    rows, blocks = rows.replace({"layer": _LAYERS}), {}
    for axis, word in (("n", "length"), ("d", "width")):
        columns = [name for name in rows if re.search(f"_exponent_{axis}(_se)?$", str(name))]
        more = ["longest_path", "published path"] if axis == "n" else []
        sizes = f"{rows[axis].iloc[0]}, k = {rows['k'].iloc[0]:.0f}, r = {rows['r'].iloc[0]:.0f}"
        blocks[f"exponents of the {word} {axis}, {sizes}"] = rows[["layer", "complexity", *columns, *more]]
    return blocks


@table(reads="complexity.csv", published=lambda: THEORY, readers=_ranges)
def transformer_layers(results: Results, runs: list[str]) -> DataFrame:
    """How does the cost of four layer types grow with length n and width d? After Table 1 of arXiv:1706.03762
    (Attention Is All You Need). An exponent is the slope of the logarithm of operations (multiply-adds), time or memory
    on the logarithm of n or d; 2 means that doubling n costs four times as much. The exponents of operations should
    equal those of the published cost. Times follow them only if the operation is large. After ±: the standard error of
    the slope. As in the paper, the projections of self-attention, O(n d^2), are not counted. The longest path between
    two positions is measured at the largest n.
    """
    ours = []
    for name, group in complexity(results, runs).groupby("operation", sort=False):
        row: dict[str, object] = {"layer": name, "k": group["k"].iloc[0], "r": group["r"].iloc[0]}
        for axis in ("n", "d"):
            points = group[group["axis"] == axis]
            row[axis] = f"{points[axis].min()} to {points[axis].max()}"
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"], error = slope(points, axis, column)
                if label != "counted":
                    row[f"{label}_exponent_{axis}_se"] = error
        ours.append(row | {"longest_path": int(group["path"].max())})
    return DataFrame(ours)
