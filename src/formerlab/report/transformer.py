"""What figures and tables know of translations: scores per run and seed, made from the rows of sentences."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.evaluation.translation.bleu import METRICS, STATISTICS, corpus_bleu
from formerlab.report.runs import add_perplexity, ends, regime_of
from formerlab.results.read import Results
from formerlab.statistics import student, weighted_means

STUDY = "transformer"
SCORES = ("loss_nats", *METRICS, "exact_percent")


def scores(results: Results, split: str) -> DataFrame:
    """Return one row per run and seed: corpus BLEU by every metric and the share of exact translations, in percent."""
    rows, sentences = results.rows("bleu.csv", STUDY), results.rows("translate.csv", STUDY)
    if rows.empty:
        return DataFrame(columns=["run", "seed", *METRICS, "exact_percent"])
    found = [
        {
            "run": run,
            "seed": seed,
            "metric": metric,
            "bleu": float(corpus_bleu(group[list(STATISTICS)].to_numpy(float).sum(axis=0))),
        }
        for (run, seed, metric), group in rows[rows["split"] == split].groupby(["run", "seed", "metric"])
    ]
    if not found:
        return DataFrame(columns=["run", "seed", *METRICS, "exact_percent"])
    wide = DataFrame(found).pivot(index=["run", "seed"], columns="metric", values="bleu")
    exact = sentences[sentences["split"] == split].groupby(["run", "seed"])["exact"].mean()
    return wide.assign(exact_percent=100 * exact).reset_index()


def losses(results: Results, split: str) -> DataFrame:
    """Return one row per run and seed with its loss in nats per target token, never smoothed.

    The split `test` is measured with the final weights; `valid` after the last step, before any average of snapshots.
    """
    rows = results.rows("test.csv" if split == "test" else "eval.csv", STUDY)
    if rows.empty:
        return DataFrame(columns=["run", "seed", "loss_nats"])
    if split == "valid":
        rows = rows[rows["step"] == rows.groupby(["run", "seed"])["step"].transform("max")]
    return weighted_means(rows, ["run", "seed"]).reset_index()


def over_seeds(results: Results, split: str, runs: Sequence[str]) -> DataFrame:
    """Return one row per run: the means over seeds of losses and scores with Student intervals, and its record."""
    records = results.runs(STUDY, runs)
    if records.empty:
        return DataFrame(columns=["run"])
    table = records.merge(losses(results, split), on=["run", "seed"], how="left")
    table = table.merge(scores(results, split), on=["run", "seed"], how="left")
    rows = []
    for run, group in table.groupby("run", sort=False):
        row: dict[Any, Any] = group.iloc[0].to_dict() | {"run": run, "source": "ours", "seeds": len(group)}
        row["regime"] = regime_of(row)
        for name in SCORES:
            values = group[name].dropna() if name in group else pd.Series(dtype=float)
            row |= ends(name, student(values.to_numpy(dtype=float)))
        rows.append(add_perplexity(row))
    return DataFrame(rows)


def complexity(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the measured points, once: those of the first run that has them."""
    rows = results.rows("complexity.csv", STUDY, runs)
    if rows.empty:
        return rows
    first = rows.iloc[0]
    chosen: DataFrame = rows[(rows["run"] == first["run"]) & (rows["seed"] == first["seed"])]
    return chosen
