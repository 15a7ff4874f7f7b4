"""Scores of the translation study, for its tables and figures (arXiv:1706.03762)."""

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import stats

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.catalogue import table
from formerlab.report.published import TRANSFORMER, published_rows
from formerlab.report.runs import (
    held_out_losses,
    last_step_rows,
    load_runs,
    means_by_run,
    validation_losses,
    with_difference,
)
from formerlab.report.tables.blocks import in_words, with_pooled, with_verdict, with_verdicts
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
    """Return the rows of complexity.csv of the first run and seed."""
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
"""Patterns in run names and their labels; each names a change from the base model."""
CLAIMS = (
    *("transformer-single-head-worse", "transformer-dropout-helps", "transformer-label-smoothing-trade"),
    "transformer-learned-positions-equal",
)
_TABLE_3 = {
    r"\(A\) h=(\d+) .*": r"heads-\1", r"\(B\) dk=": "key-", r"\(C\) N=": "layers-", r"\(C\) d=(\d+) .*": r"width-\1",
    r"\(C\) ff=": "hidden-", r"\(D\) dropout (0\.)?": "dropout-", r"\(D\) label smoothing (0\.)?": "smoothing-",
    r"\(E\) .*": "positions-learned", "big .*": "big",
}  # fmt: skip
"""Our run with the same change, by pattern of the rows of Table 3 of the paper."""


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
    """Return the differences to the base model, each beside the published difference, below a heading with the scores
    of the base model.
    """
    if rows["source"].eq("published").any():
        return {}
    theirs, blocks = published_variations().set_index("run"), {}
    rows = rows.assign(**{name: rows["run"].map(theirs[name]) for name in ("published_nats", "published_bleu")})
    for regime, group in rows.groupby("regime", sort=False):
        base = group[group["run"].str.endswith("base")].iloc[0]
        printed = theirs.loc["base"]
        level = (
            f"base has perplexity {base['test_perplexity']:.2f} and BLEU {base['test_sacrebleu']:.1f}; published base: "
            f"{printed['perplexity']:.2f} and {printed['bleu']:.1f}"
        )
        shown = group[~group["run"].str.endswith("base")].drop(columns=["regime", "parameters"])
        shown = shown.replace({"change": {"one head": "one head (published: from 8)"}})
        blocks[f"minus base; {regime}; {level}"] = shown.sort_values("test_minus_base_nats")
    return blocks


def _answer_variations(rows: DataFrame) -> str:
    rows = rows.dropna(subset="test_minus_base_nats").sort_values("test_minus_base_nats")
    if rows.empty:
        return ""
    ends = [f"{in_words(row, 'test_minus_base_nats')} ({row['change']})" for _, row in rows.iloc[[0, -1]].iterrows()]
    return f"The loss minus base is between {' and '.join(ends)} nats{with_verdict(rows.iloc[0])}."


def _minus_base(ours: DataFrame, measured: DataFrame, **names: str) -> DataFrame:
    """Return our rows with a label and, for each `column=metric` in `names`, the metric minus the metric of the base
    model, paired by seed.
    """
    settled = ours["run"].str.startswith("settled-")
    ours = ours.assign(base=settled.map({True: "settled-base", False: "base"}))
    for name, value in names.items():
        ours = with_difference(ours, measured, "run", "base", name, value)
    return ours.assign(change=ours["run"].replace(LABELS, regex=True))


@table(reads="eval.csv test.csv translate.csv bleu.csv", published=published_variations, readers=_with_published,
       answer=_answer_variations,
       columns="source run change regime test_minus_base_nats[]+ published_nats test_bleu_minus_base[] published_bleu "
               "-loss_minus_base_nats[] -bleu_minus_base[] -perplexity -loss_nats[] -sacrebleu -bleu -test_perplexity "
               "-test_sacrebleu -test_compound_split -test_tokenized_lowercase -test_exact_percent parameters tokens "
               "seeds verdict")  # fmt: skip
def transformer_variations(results: Results, runs: list[str]) -> DataFrame:
    """Which changes of the base Transformer help?

    - Test loss (nats per word piece) and BLEU minus base, paired by seed, after Table 3 of arXiv:1706.03762 (Attention
    Is All You Need; development split).
    - Brackets: 95 % interval over seeds; the interval of the loss includes the variance of similar runs.
    - Doubt: all models were still learning; our base has four heads, the paper's eight.
    """
    ours, keys = over_seeds(results, "valid", runs), ["run", "seed"]
    measured = last_step_rows(validation_losses(results, STUDY, runs)).join(scores(results, "valid"), on=keys)
    test = scores(results, "test").add_prefix("test_")
    test = held_out_losses(results, STUDY, runs).rename(columns={"loss_nats": "test_nats"}).join(test, on=keys)
    names = {"loss_minus_base_nats": "loss_nats", "bleu_minus_base": "sacrebleu"}
    names |= {"test_minus_base_nats": "test_nats", "test_bleu_minus_base": "test_sacrebleu"}
    columns = [*keys, *(name for name in test if str(name).startswith("test_"))]
    ours = _minus_base(ours, measured.merge(test[columns], on=keys, how="outer"), **names)
    levels = test.groupby("run")[columns[2:]].mean().assign(test_perplexity=lambda rows: np.exp(rows["test_nats"]))
    ours = with_pooled(ours.join(levels, on="run"), results, STUDY, "run", "base", "test_minus_base_nats")
    return with_verdicts(ours, results, STUDY, dict.fromkeys(CLAIMS, ~ours["run"].str.endswith("base")))


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


_LAYERS = {
    "self_attention": "self-attention",
    "restricted": "self-attention, window r",
}
_COSTS = {"O(n^2 d)": "n²·d", "O(n d^2)": "n·d²", "O(k n d^2)": "k·n·d²", "O(r n d)": "r·n·d"}
_STEPS = {"O(1)": "1", "O(n)": "n", "O(log_k n)": "log n / log k", "O(n/r)": "n/r"}


def slope(points: DataFrame, axis: str, column: str) -> tuple[float, float]:
    """Return the least-squares slope of ln(column) on ln(axis), and its standard error.

    Both are NaN for fewer than two distinct values of the axis; the error is NaN for fewer than three points.
    """
    if points[axis].nunique() < 2:
        return float("nan"), float("nan")
    fit = stats.linregress(np.log(points[axis].astype(float)), np.log(points[column].astype(float)))
    return float(fit.slope), float(fit.stderr) if len(points) > 2 else float("nan")


def _ranges(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the exponents of n and d beside the published cost, below a heading with the measured ranges."""
    if rows["source"].eq("published").any():
        return {}
    theory, first = THEORY.rename(columns={"longest_path": "published path"}), rows.iloc[0]
    columns = ["complexity", "sequential", "published path"]
    rows = rows.drop(columns=[*columns[:2]]).merge(theory[["layer", *columns]], on="layer")
    counted = (rows[f"counted_exponent_{axis}"].map("{:.2f}".format) for axis in ("n", "d"))
    rows["counted_nd"] = next(counted) + ", " + next(counted)
    rows = rows.replace({"layer": _LAYERS, "complexity": _COSTS, "sequential": _STEPS, "published path": _STEPS})
    rows["path: ours; published"] = rows["longest_path"].map("{:,}; ".format) + rows["published path"]
    times = [name for name in rows if str(name).startswith("time_")]
    shown = rows[["layer", "complexity", "counted_nd", *times, "sequential", "path: ours; published"]]
    heading = (
        f"exponents of the length n = {first['n']} (at width {first['d_fixed']:.0f}) and of the width d = {first['d']} "
        f"(at length {first['n_fixed']:.0f}); k = {first['k']:.0f}, r = {first['r']:.0f}"
    )
    return {heading: shown}


def _answer_layers(rows: DataFrame) -> str:
    ours, theory = rows.set_index("layer"), THEORY.set_index("layer")

    def exponents(table: DataFrame, cost: str) -> DataFrame:
        return (
            table.loc[ours.index, [f"{cost}_exponent_n", f"{cost}_exponent_d"]]
            .set_axis(["n", "d"], axis=1)
            .astype(float)
        )

    published, times = exponents(theory, "counted"), exponents(ours, "time")
    error = float((exponents(ours, "counted") - published).abs().to_numpy().max())
    far = (times - published).abs()
    layer, axis = str(far.max(axis=1).idxmax()), str(far.max().idxmax())
    measured, printed = float(times[axis][layer]), float(published[axis][layer])
    return (
        f"Counted operations have the published exponents (largest difference: {error:.2f}). Measured times need not: "
        f"{_LAYERS.get(layer, layer)} has {measured:.2f} in {axis}, not {printed:.0f}."
    )


@table(reads="complexity.csv", published=lambda: THEORY, readers=_ranges, answer=_answer_layers)
def transformer_layers(results: Results, runs: list[str]) -> DataFrame:
    """How does the cost of four layer types grow with length n and width d?

    - An exponent is the slope of log operations (multiply-adds) or log time on log n or log d, after Table 1 of
    arXiv:1706.03762 (Attention Is All You Need).
    - After ±: standard error; "largest": the two largest sizes alone. Paths are at the largest n.
    - Doubt: one core cannot show sequential steps, and small calls take constant time.
    """
    ours = []
    for name, group in complexity(results, runs).groupby("operation", sort=False):
        row: dict[str, object] = {"layer": name, "k": group["k"].iloc[0], "r": group["r"].iloc[0]}
        for axis, other in (("n", "d"), ("d", "n")):
            points = group[group["axis"] == axis].sort_values(axis)
            row[axis] = f"{points[axis].min()} to {points[axis].max()}"
            row[f"{other}_fixed"] = points[other].iloc[0]
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"], error = slope(points, axis, column)
                if label != "counted":
                    row[f"{label}_exponent_{axis}_se"] = error
            row[f"time_exponent_{axis}_largest"], _ = slope(points.tail(2), axis, "time_s")
        ours.append(row | {"longest_path": int(group["path"].max())})
    return DataFrame(ours)
