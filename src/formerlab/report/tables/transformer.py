"""Scores of the translation study, for its tables and figures (arXiv:1706.03762)."""

import numpy as np
import pandas as pd
from pandas import DataFrame
from scipy import stats

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.catalogue import expand_columns, table
from formerlab.report.columns import count
from formerlab.report.published import TRANSFORMER, published_rows
from formerlab.report.runs import (
    held_out_losses,
    last_step_rows,
    load_runs,
    means_by_run,
    seed_count,
    validation_losses,
    with_difference,
)
from formerlab.report.tables.cells import in_words, with_pooled, with_prefix, with_verdict, with_verdicts
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


def complexity(results: Results, runs: list[str]) -> DataFrame:
    """Return the rows of complexity.csv of the first run and seed."""
    rows = results.rows("complexity.csv", STUDY, runs)
    return rows.loc[rows["run"].eq(rows["run"].iloc[0]) & rows["seed"].eq(rows["seed"].iloc[0])] if len(rows) else rows


LABELS = {
    "^settled-": "", "^heads-1$": "one head", "^heads-": "heads h = ", "^key-": "key width = ",
    "^layers-": "layers N = ", "^width-": "width = ", "^hidden-": "feed-forward width = ",
    "^dropout-0": "no dropout", r"^dropout-(\d)": r"dropout 0.\1", "^smoothing-0": "no label smoothing",
    r"^smoothing-(\d)": r"label smoothing 0.\1", r"^positions-(\w+)": r"\1 positions",
    "-averaged": ", averaged checkpoints",
}  # fmt: skip
"""Patterns in run names with their labels; most labels name a change from the base model."""
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
    of the base model. Without a base model, return all rows.
    """
    if rows["source"].eq("published").any():
        return {}
    rows, printed, blocks = _beside_published(rows), published_variations().iloc[0], dict[str, DataFrame]()
    is_base, columns = rows["run"].str.endswith("base"), [*expand_columns("test_minus_base_nats[]+"), "published_nats"]
    columns += [*expand_columns("test_bleu_minus_base[]"), "published_bleu"]
    for _, base in rows[is_base].drop_duplicates("regime").iterrows():
        in_regime = rows["regime"].eq(base["regime"])
        heading = (
            f"minus base; {base['regime']}, {count(base['tokens'])} target tokens, "
            f"{seed_count(rows.loc[in_regime, 'seeds'])}; base has perplexity {base['test_perplexity']:.2f} and BLEU "
            f"{base['test_sacrebleu']:.1f}, published base {printed['perplexity']:.2f} and {printed['bleu']:.1f}"
        )
        changes = rows[in_regime & ~is_base].sort_values("test_minus_base_nats")
        blocks[heading] = changes[["change", *columns, "verdict"]]
    return blocks or rows


def _beside_published(rows: DataFrame) -> DataFrame:
    """Return our rows with the published differences of the same changes. For one head, the published difference is to
    the published model with our base's number of heads.
    """
    paper, names = published_variations().set_index("run"), ["published_nats", "published_bleu"]
    heads = rows.loc[rows["run"].str.endswith("base"), "heads"].dropna().unique()
    if len(heads) == 1 and (same := f"heads-{heads[0]:.0f}") in paper.index:
        paper.loc["heads-1", names] -= paper.loc[same, names]
    return rows.assign(**{name: rows["run"].map(paper[name]) for name in names})


def _answer_variations(rows: DataFrame) -> str:
    rows = _beside_published(rows.dropna(subset="test_minus_base_nats")).dropna(subset="published_nats")
    rows = rows[rows["published_nats"].round(3).ne(0)]  # an equal published loss has no direction
    if rows.empty:
        return ""
    same = rows[np.sign(rows["test_minus_base_nats"]) == np.sign(rows["published_nats"])]
    words = "; ".join(f"{row['change']}, {in_words(row, 'test_minus_base_nats')} nats" for _, row in same.iterrows())
    return (
        f"The loss changes in the published direction in {len(same)} of the {len(rows)} variants with a "
        f"published difference{with_prefix(': ', words)}"
        f"{with_verdict(rows.iloc[0])}."
    )


@table(reads="eval.csv test.csv translate.csv bleu.csv", published=published_variations, readers=_with_published,
       answer=_answer_variations,
       columns="source run change regime test_minus_base_nats[]+ published_nats test_bleu_minus_base[] published_bleu "
               "-loss_minus_base_nats[] -bleu_minus_base[] -perplexity -loss_nats[] -sacrebleu -bleu -test_perplexity "
               "-test_sacrebleu -test_compound_split -test_tokenized_lowercase -test_exact_percent parameters tokens "
               "heads seeds verdict")  # fmt: skip
def transformer_variations(results: Results, runs: list[str]) -> DataFrame:
    """Which changes of the base Transformer help?

    - Test loss (nats per word piece) and BLEU minus the values of the base model, paired by seed, for German captions
    translated into English. After Table 3 of arXiv:1706.03762 (Attention Is All You Need).
    - Brackets: 95 % interval over seeds; the interval of the loss includes the variance of similar runs.
    - Doubt: all models were still learning.
    """
    keys, records = ["run", "seed"], load_runs(results, STUDY, runs)
    valid = last_step_rows(validation_losses(results, STUDY, runs)).join(scores(results, "valid"), on=keys)
    valid = valid.set_index(keys)[[*SCORES]]
    test = held_out_losses(results, STUDY, runs).set_index(keys)[["loss_nats"]].rename(columns={"loss_nats": "nats"})
    test = test.join(scores(results, "test")).add_prefix("test_")
    measured, first = valid.join(test, how="outer").reset_index(), ["regime", "tokens", "spec.model.heads"]
    levels = test.groupby("run").mean().assign(test_perplexity=lambda rows: np.exp(rows["test_nats"]))
    ours = means_by_run(records.join(valid, on=keys), SCORES, first).join(levels, on="run")
    ours = ours.rename(columns={"spec.model.heads": "heads"}).assign(
        base=ours["run"].str.startswith("settled-").map({True: "settled-base", False: "base"}),
        change=ours["run"].replace(LABELS, regex=True),
    )
    names = {"loss_minus_base_nats": "loss_nats", "bleu_minus_base": "sacrebleu"}
    names |= {"test_minus_base_nats": "test_nats", "test_bleu_minus_base": "test_sacrebleu"}
    for name, value in names.items():
        ours = with_difference(ours, measured, "run", "base", name, value)
    ours = with_pooled(ours, results, STUDY, "run", "base", "test_minus_base_nats")
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


_LAYERS = {"self_attention": "self-attention", "restricted": "self-attention, window r"}
_STEPS = {"O(1)": "1", "O(n)": "n", "O(log_k n)": "log n / log k", "O(n/r)": "n/r"}


def slope(points: DataFrame, axis: str, column: str) -> tuple[float, float]:
    """Return the least-squares slope of ln(column) on ln(axis), and its standard error.

    Both are NaN for fewer than two distinct values of the axis; the error is NaN for fewer than three points.
    """
    if points[axis].nunique() < 2:
        return float("nan"), float("nan")
    fit = stats.linregress(np.log(points[axis].astype(float)), np.log(points[column].astype(float)))
    return float(fit.slope), float(fit.stderr) if len(points) > 2 else float("nan")


def _exponents(rows: DataFrame) -> DataFrame:
    """Return a row per layer and size (n or d) with three exponents: of the published count, of our count and of the
    measured times.
    """
    theory, parts = THEORY.set_index("layer"), list[DataFrame]()
    for axis, words in {"n": "length n", "d": "width d"}.items():
        part = rows.set_axis(rows.columns.str.replace(f"_exponent_{axis}", "_exponent"), axis=1)
        published = part["layer"].map(theory[f"counted_exponent_{axis}"])
        parts.append(part.assign(axis=words, published_exponent=published))
    columns = ["layer", "axis", "published_exponent", "counted_exponent", "time_exponent", "time_exponent_se"]
    return pd.concat(parts).sort_index(kind="stable")[[*columns, "time_exponent_largest"]]


def _ranges(rows: DataFrame) -> dict[str, DataFrame]:
    """Return exponents beside the published ones (the heading has the measured ranges), and path lengths."""
    if rows["source"].eq("published").any():
        return {}
    first, theory = rows.iloc[0], THEORY.set_index("layer")
    heading = (
        f"exponents; n = {first['n']} (at width {first['d_fixed']:.0f}), d = {first['d']} (at length "
        f"{first['n_fixed']:.0f}); kernel width k = {first['k']:.0f}, window r = {first['r']:.0f}"
    )
    paths = rows[["layer", "longest_path"]].assign(
        published_path=rows["layer"].map(theory["longest_path"]).replace(_STEPS),
        published_steps=rows["layer"].map(theory["sequential"]).replace(_STEPS),
    )
    blocks = {heading: _exponents(rows), f"longest path at n = {first['n'].split()[-1]}": paths}
    return {name: block.replace({"layer": _LAYERS}) for name, block in blocks.items()}


def _answer_layers(rows: DataFrame) -> str:
    table = _exponents(rows).replace({"layer": _LAYERS})
    error = (table["counted_exponent"] - table["published_exponent"]).abs().max()
    near = (table["time_exponent_largest"] / table["published_exponent"] - 1).abs().lt(0.05)
    return (
        f"Counted operations grow as published (largest difference of an exponent: {error:.2f}). Measured times may "
        f"grow differently: between the two largest sizes, {near.sum()} of {len(table)} exponents are within 5 % of "
        f"the published one{with_prefix(': ', ', '.join((table['layer'] + ' in ' + table['axis'])[near]))}."
    )


@table(reads="complexity.csv", published=lambda: THEORY, readers=_ranges, answer=_answer_layers)
def transformer_layers(results: Results, runs: list[str]) -> DataFrame:
    """How does the cost of four layer types grow with length n and width d?

    - An exponent is the slope of log operations (multiply-adds) or log time of one call on log n or log d, after Table
    1 of arXiv:1706.03762 (Attention Is All You Need).
    - After ±: standard error of the slope.
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
