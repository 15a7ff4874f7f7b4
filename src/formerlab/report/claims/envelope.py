"""The FLOPs that models from scratch need for a loss: the lower envelope of their held-out losses against FLOPs.

A point is a run with its own full schedule. On the envelope lie the runs that no run of their budget or of a smaller
one equals; between two neighbours ln FLOPs is linear in ln loss, and beyond the ends nothing is known (claims.yaml,
metrics: flops_ratio_at_equal_loss).
"""

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import DataFrame

SAME_BUDGET = 1.02
"""Runs whose FLOPs differ by less than this factor have one budget, of which the best alone counts.

A budget is met in whole steps, so models of several sizes miss it by a percent; else one that is worse, and cheaper by
so little, would lie on the envelope as a wall.
"""


def on_envelope(flops: ArrayLike, losses: ArrayLike) -> NDArray[np.intp]:
    """Return the positions of the runs on the envelope, the cheapest first."""
    costs, found = np.asarray(flops, dtype=float), np.asarray(losses, dtype=float)
    order = np.lexsort((found, costs))
    costs, found = costs[order], found[order]
    best = np.minimum.accumulate(found)
    best_before = np.concatenate([[np.inf], best[:-1]])
    best_of_budget = best[np.searchsorted(costs, SAME_BUDGET * costs, side="right") - 1]
    return order[(found < best_before) & (found <= best_of_budget)]


def flops_at_loss(loss: float, flops: ArrayLike, losses: ArrayLike) -> float:
    """Return the FLOPs at which the envelope of runs reaches a loss; NaN beyond its ends."""
    places = on_envelope(flops, losses)[::-1]
    costs, found = np.log(np.asarray(flops, dtype=float)[places]), np.asarray(losses, dtype=float)[places]
    if not found[0] <= loss <= found[-1]:
        return math.nan
    above = np.searchsorted(found, loss)
    if found[above] == loss:
        return float(np.exp(costs[above]))
    below = above - 1  # ln of a ratio by log1p: neighbours may be as near as floats can be
    share = np.log1p((loss - found[below]) / found[below]) / np.log1p((found[above] - found[below]) / found[below])
    return float(np.exp(costs[below] + share * (costs[above] - costs[below])))


def of_seed(runs: DataFrame, seed: Hashable) -> DataFrame:
    """Return the points for a seed: its own where every run of the envelope has it, else the means over the seeds."""
    own = runs[runs["seed"] == seed]
    if own["run"].nunique() == runs["run"].nunique():
        return own
    return runs.groupby("run", as_index=False)[["flops_cumulative", "loss_nats"]].mean()
