"""Scores of the translation study, of its tables and figures (arXiv:1706.03762)."""

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.catalogue import table
from formerlab.report.published import TRANSFORMER, published, published_rows
from formerlab.report.runs import held_out_losses, last_step_rows, load_runs, means_by_run, validation_losses
from formerlab.results.read import Results

STUDY = "transformer"
SCORES = ("loss_nats", *METRICS, "exact_percent")


def scores(results: Results, split: str) -> DataFrame:
    """Return corpus BLEU by every metric and the share of exact translations, in percent, by run and seed."""
    rows, sentences = (results.rows(file, STUDY) for file in ("bleu.csv", "translate.csv"))
    keys = ["run", "seed", "metric"]
    sums = rows[rows["split"] == split].reindex(columns=[*keys, *STATISTICS]).groupby(keys).sum()
    bleu = pd.Series([float(corpus_bleu(one)) for one in sums.to_numpy(float)], sums.index, dtype=float)
    exact = sentences[sentences["split"] == split].groupby(["run", "seed"])["exact"].mean()
    return bleu.unstack("metric").assign(exact_percent=100 * exact).reindex(columns=[*METRICS, "exact_percent"])


def over_seeds(results: Results, split: str, runs: list[str]) -> DataFrame:
    """Return one row per run: the means over seeds of losses and scores with Student intervals, and its record.

    Losses are in nats per target token, never smoothed. The split `test` is measured with the final weights; `valid`
    after the last step, before any average of snapshots.
    """
    records = load_runs(results, STUDY, runs)
    test = split == "test"
    losses = (held_out_losses if test else validation_losses)(results, STUDY, runs)
    losses = losses if test else last_step_rows(losses)
    measured = losses.set_index(["run", "seed"])[["loss_nats"]].join(scores(results, split))
    return means_by_run(records.join(measured, on=["run", "seed"]), SCORES, first=records.columns)


def complexity(results: Results, runs: list[str]) -> DataFrame:
    """Return the measured points, once: those of the first run that has them."""
    rows = results.rows("complexity.csv", STUDY, runs)
    chosen: DataFrame = rows[rows[["run", "seed"]].eq(rows[["run", "seed"]].iloc[0]).all(axis=1)] if len(rows) else rows
    return chosen


def _published_bleu() -> DataFrame:
    rows = published(TRANSFORMER, "Table 2")
    languages = rows["setting"].str.extract(r"(En-\w+)", expand=False).str.lower().str.replace("-", "_")
    columns = rows["metric"].mask(rows["metric"] == "bleu", "bleu_" + languages).replace("training_cost", "flops")
    rows = rows.assign(column=columns, value=rows["value"].astype(float))  # a cost of both pairs is that of the first
    return rows.pivot_table("value", "model", "column", "first", sort=False).rename_axis("run").reset_index()


@table(reads="test.csv translate.csv bleu.csv", published=_published_bleu,
       columns="source run -data regime sacrebleu[] compound_split -tokenized_lowercase exact_percent bleu_en_de "
               "bleu_en_fr perplexity -parameters flops seeds")  # fmt: skip
def transformer_bleu(results: Results, runs: list[str]) -> DataFrame:
    """Translations of the test split and what training cost, after Table 2 of arXiv:1706.03762. The column
    sacrebleu is the score to compare with others; its signature is in translate.json of each run.
    compound_split is tokenised, with hyphenated compounds split, as the 2017 paper reports (there with Moses'
    tokenizer and a tweaked reference: up to 1.5 BLEU more than sacreBLEU); tokenized_lowercase is what most
    tutorials report. exact is the share of translations equal to the reference, which means something on the
    embedded task alone. Perplexity is per word piece, so it compares within one vocabulary only. Scores of another
    data set or language pair do not compare with the published ones.
    """
    return over_seeds(results, "test", runs).rename(columns={"data.name": "data"})


_SPEC = {"layers": "N", "width": "d_model", "heads": "h", "d_key": "d_k", "dropout": "P_drop"}
_ROWS = ("base", "heads", "key", "layers", "width", "hidden", "dropout", "smoothing", "positions", "big")


@table(reads="eval.csv test.csv translate.csv bleu.csv",
       published=lambda: published_rows(
           TRANSFORMER, "Table 3", names={"model": "run", "perplexity_per_wordpiece": "perplexity"},
           factors={"parameters": 1e6}),
       columns="source run regime change -N -d_model -h -d_k -P_drop -smoothing -positions loss_nats[] perplexity "
               "sacrebleu[] bleu parameters seeds")  # fmt: skip
def transformer_variations(results: Results, runs: list[str]) -> DataFrame:
    """Variations of the base model on the development split, after Table 3 of arXiv:1706.03762: (A) heads, (B) key
    width, (C) size, (D) dropout and label smoothing, (E) learned positions. Losses and perplexities are per word
    piece, without label smoothing, after the last step; BLEU is sacreBLEU. The paper averages no checkpoints here;
    runs named averaged, and big, do before they translate. At another vocabulary, scale or language pair only the
    differences between rows compare with the published ones.
    """
    names = {f"spec.model.{key}": name for key, name in _SPEC.items()}
    names |= {"spec.task.label_smoothing": "smoothing", "spec.model.position.kind": "positions"}
    ours = over_seeds(results, "valid", runs).rename(columns=names)
    order = ours["run"].str.split("-").str[0].map({name: number for number, name in enumerate(_ROWS)})
    ours = ours.assign(order=order).sort_values(["regime", "order", "run"], ignore_index=True)
    settings = ours.reindex(columns=[*_SPEC.values(), "smoothing", "positions"])
    base = settings[ours["run"].isin(["base", "settled-base"])].head(1).to_dict("records")
    changes = [
        [f"{key} = {row[key]}" for old in base for key in old if str(row[key]) != str(old[key])]
        for row in settings.to_dict("records")
    ]
    return ours.assign(change=list(map(", ".join, changes)))


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


def slope(points: DataFrame, axis: str, column: str) -> float:
    """Return the least-squares slope of ln(column) on ln(axis)."""
    if points[axis].nunique() < 2:
        return float("nan")
    return float(np.polyfit(np.log(points[axis].astype(float)), np.log(points[column].astype(float)), 1)[0])


@table(reads="complexity.csv", published=lambda: THEORY)
def transformer_layers(results: Results, runs: list[str]) -> DataFrame:
    """The four layer types of Table 1 of arXiv:1706.03762: slopes of the logarithm of counted multiply-adds, measured
    time and held memory on the logarithm of length n and of width d, beside the exponents of the table. The table
    leaves out the projections of self-attention, O(n d^2), and so do the counts; time follows the exponents only where
    the operation is large. The longest path is found by search and shown at the largest length.
    """
    ours = []
    for name, group in complexity(results, runs).groupby("operation", sort=False):
        row: dict[str, object] = {"layer": name}
        for axis in ("n", "d"):
            points = group[group["axis"] == axis]
            for column, label in (("multiply_adds", "counted"), ("time_s", "time"), ("memory_bytes", "memory")):
                row[f"{label}_exponent_{axis}"] = slope(points, axis, column)
        ours.append(row | {"longest_path": int(group["path"].max())})
    return DataFrame(ours)
