"""The FLOPs that models from scratch need for a loss: the lower envelope of their held-out losses against FLOPs.

A point is a run with its own full schedule. On the envelope lie the runs that no run of their budget or of a smaller
one equals; between two neighbours ln FLOPs is linear in ln loss, and beyond the ends nothing is known (claims.yaml,
metrics: flops_ratio_at_equal_loss).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import Series

from formerlab.report.claims.quantity import variance_within

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


def envelope_variance(
    losses: NDArray[np.float64], costs: NDArray[np.float64], flops: NDArray[np.float64], by_run: Sequence[Series]
) -> tuple[float, int] | None:
    """Return the variance between seeds that the envelope gives to a mean ratio of FLOPs, and its degrees of freedom.

    `losses` and `costs` are those of the chain by seed, `flops` and `by_run` (losses by seed) those of the envelope's
    runs. To first order: the derivative by the mean loss of each run, times the variance of that mean, pooled over the
    runs. None where each of them has one seed.
    """
    if (pool := variance_within(by_run)) is None:
        return None
    means, step = np.array([run.mean() for run in by_run]), 1e-6

    def ratio(shift: NDArray[np.float64]) -> float:
        return float(np.mean(costs / [flops_at_loss(loss, flops, means + shift) for loss in losses]))

    slopes = [(ratio(shift) - ratio(-shift)) / (2 * step) for shift in step * np.eye(len(means))]
    return float(sum(slope**2 * pool[0] / len(run) for slope, run in zip(slopes, by_run, strict=True))), pool[1]
