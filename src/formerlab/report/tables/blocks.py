"""Helpers of several tables: blocks by data set, values side by side, pooled intervals, and the runs of claims."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns
from formerlab.report.claims.arms import read_arms
from formerlab.report.claims.quantity import Combination, MissingRowsError
from formerlab.report.claims.registry import Arm, ClaimArms, read_claims
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.claims.verdict import evaluate
from formerlab.report.runs import estimate
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE


def by_regime(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return our rows in a block per data set and learning rate schedule, each with the baselines of its data set.

    The regime of a baseline is its data set alone. Published rows have no regime and stay as they are.
    """
    if "regime" not in rows or rows["source"].eq("published").any():
        return rows
    regimes = rows["regime"].astype(str)
    trained = regimes[regimes.str.contains("learning rate")].unique()
    shown = {name: [name == text or name.startswith(f"{text},") for text in regimes] for name in trained}
    return {name: rows[mask].drop(columns="regime") for name, mask in shown.items()} or rows


def side_by_side(rows: DataFrame, keys: list[str], labels: Series, value: str, among: Iterable[str] = ()) -> DataFrame:
    """Return a row per combination of `keys`, with `value` and its interval ends in columns named by `labels`.

    `among` gives the order of the columns; by default the order of the rows.
    """
    table = rows[keys].drop_duplicates(ignore_index=True)
    for label in among or labels.unique():
        ends = dict(zip(expand_columns(f"{value}[]"), expand_columns(f"{label.replace(' ', '~')}[]"), strict=True))
        block = rows.loc[labels == label, [*keys, *ends]].rename(columns=ends)
        table = pd.merge(table, block, on=keys, how="left")
    return table


def with_pooled(
    rows: DataFrame, results: Results, study: str, a: str, b: str, name: str, metric: str = "loss_nats"
) -> DataFrame:
    """Return rows with the interval that verdicts use, as `<name>_pooled_low` and `<name>_pooled_high`.

    `a` and `b` are the columns with the names of the two runs, and `name` is the column of the difference, in nats
    (loss_nats) or points of accuracy (error_rate). The ends are NaN for published rows, for rows of single seeds, for
    rows without a difference, and if the runs share fewer than two seeds.
    """
    reader, sign = ClaimRows(results, study, ClaimArms()), 1.0 if metric == "loss_nats" else -100.0
    mean = (rows.get("source", "ours") == "ours") & (rows.get("part", "mean") == "mean")
    differ = rows.get(name, Series(np.nan, rows.index)).notna() & rows[a].ne(rows[b]) & mean
    intervals = [
        pooled_estimate(reader, f"{name}_pooled", {first: sign, second: -sign}, metric)
        for first, second in rows.loc[differ, [a, b]].to_numpy()
    ]
    ends = [f"{name}_pooled_{end}" for end in ("low", "high")]
    return rows.join(DataFrame(intervals, rows.index[differ], ends))


def pooled_estimate(
    reader: ClaimRows,
    name: str,
    signs: Mapping[str, float],
    metric: str = "loss_nats",
    logarithm: bool = False,
    **arm: Any,
) -> dict[Any, Any]:
    """Return, as `name`, the sum over runs of sign * metric (or of its logarithm), with the interval that verdicts use.

    The result is empty if a run has no such metric.
    """
    try:
        terms = {
            reader.run_metric(Arm(run=run, **arm), metric, logarithm=logarithm): sign for run, sign in signs.items()
        }
    except MissingRowsError:
        return {}
    return estimate(name, Combination(terms).interval(CONFIDENCE))


def processor(device: str) -> str:
    """Return a short name of the processor in the column `device` of a record."""
    return device.replace("(R)", "").removesuffix(" Processor")


def claim_runs(results: Results, study: str, *claims: str) -> dict[str, set[str]]:
    """Return the runs of each claim (by default, of all claims of the study), empty for claims without a verdict."""
    arms, cache = read_arms(Path(), results.scale).get(study, {}), dict[Any, Any]()
    runs = dict[str, set[str]]((claim, set()) for claim in claims or arms)
    for claim in (claim for claim in read_claims().claims if claim.id in runs and claim.id in arms):
        verdict = evaluate(claim, ClaimRows(results, study, arms[claim.id], cache), {}, results.scale)
        runs[claim.id] = {*verdict.runs} if verdict.outcome != "not_tested" else set()
    return runs
