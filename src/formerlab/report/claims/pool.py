"""The variance of one run between seeds, pooled over the runs of like size and budget (protocol.statistics.pooled)."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.claims.quantity import MissingRowsError, Pooled

POOL_FACTOR = 2
"""Runs within this factor of the arms, in FLOPs and in parameters, share their variance (pool_factor)."""


def pooled(runs: DataFrame, own: Collection[str], read: Callable[[str], Mapping[int, float]]) -> Pooled | None:
    """Return the variance of what `read` gives by run and seed, over runs like `own`; nothing where it has none."""
    values = []
    like = alike(runs, own)
    for name in like["run"].unique():
        try:
            found = read(str(name))
        except MissingRowsError:
            continue
        seeds = like.loc[like["run"] == name, "seed"]
        values += [(name, seed, found[seed]) for seed in seeds if seed in found]
    return residual_variance(DataFrame(values, columns=["run", "seed", "value"]))


def alike(runs: DataFrame, own: Collection[str]) -> DataFrame:
    """Return the finished runs on the data of the arms that start as an arm does, of their size and budget."""
    start = _start(runs)
    arms = runs["run"].isin(own)
    wanted = runs["status"] == "finished"
    wanted &= runs["data.fingerprint"].isin(runs.loc[arms, "data.fingerprint"]) & start.isin(start[arms])
    for column in ("flops", "parameters_non_embedding"):
        lowest, highest = runs.loc[arms, column].min() / POOL_FACTOR, runs.loc[arms, column].max() * POOL_FACTOR
        wanted &= runs[column].between(lowest, highest)
    return runs[wanted]


def residual_variance(values: DataFrame) -> Pooled | None:
    """Return the mean square that remains of values by run and seed after a fit of run + seed."""
    columns = [pd.get_dummies(values[name]).to_numpy(float) for name in ("run", "seed")]
    design, found = np.concatenate(columns, axis=1), values["value"].to_numpy(float)
    fit, _, rank, _ = np.linalg.lstsq(design, found, rcond=None)
    freedom = len(values) - int(rank)
    return Pooled(float(np.sum((found - design @ fit) ** 2)) / freedom, freedom) if freedom > 0 else None


def _start(runs: DataFrame) -> Series:
    """Return of each run the name of that which it starts from; empty from scratch."""
    origin = runs["init.id"] if "init.id" in runs else Series("", index=runs.index)
    return origin.fillna("").astype(str).str.rpartition("/")[0]
