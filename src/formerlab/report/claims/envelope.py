"""The FLOPs that models trained from scratch need to reach a loss: the lower envelope of held-out loss against FLOPs.

Each point is a run with its own full schedule. A run is on the envelope if no other run of the same or a smaller budget
reaches its loss. Between neighbours, ln FLOPs is linear in ln loss; beyond the ends, the FLOPs are unknown
(claims.yaml, metrics: flops_ratio_at_equal_loss).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import Series

from formerlab.report.claims.quantity import within_run_variance

SAME_BUDGET = 1.02
"""Runs whose FLOPs differ by less than this factor have the same budget, and only the best of them counts.

Training stops at a whole step, so the FLOPs differ from the budget by about 1 %. Without this factor, a run that is
slightly cheaper and worse would add a nearly vertical segment to the envelope.
"""


def on_envelope(flops: ArrayLike, losses: ArrayLike) -> NDArray[np.intp]:
    """Return the indices of the runs on the envelope, cheapest first. `flops` and `losses` have shape (runs,)."""
    costs, nats = np.asarray(flops, dtype=float), np.asarray(losses, dtype=float)
    order = np.lexsort((nats, costs))
    costs, nats = costs[order], nats[order]
    best = np.minimum.accumulate(nats)
    best_before = np.concatenate([[np.inf], best[:-1]])
    best_of_budget = best[np.searchsorted(costs, SAME_BUDGET * costs, side="right") - 1]
    return order[(nats < best_before) & (nats <= best_of_budget)]


def flops_at_loss(loss: float, flops: ArrayLike, losses: ArrayLike, *, extrapolate: bool = False) -> float:
    """Return the FLOPs at which the envelope of the runs (`flops` and `losses`, shape: runs) reaches a loss.

    Beyond the ends of the envelope the result is NaN. With `extrapolate`, the line through the two runs nearest to that
    end is extended.
    """
    indices = on_envelope(flops, losses)[::-1]
    costs, nats = np.log(np.asarray(flops, dtype=float)[indices]), np.asarray(losses, dtype=float)[indices]
    if not nats[0] <= loss <= nats[-1] and not (extrapolate and len(nats) > 1):
        return math.nan
    above = np.searchsorted(nats, loss)
    if above < len(nats) and nats[above] == loss:
        return float(np.exp(costs[above]))
    above = np.clip(above, 1, len(nats) - 1)
    below = above - 1  # log1p gives an accurate ln of a ratio even if the neighbours are almost equal
    fraction = np.log1p((loss - nats[below]) / nats[below]) / np.log1p((nats[above] - nats[below]) / nats[below])
    return float(np.exp(costs[below] + fraction * (costs[above] - costs[below])))


def envelope_variance(
    losses: NDArray[np.float64], costs: NDArray[np.float64], flops: NDArray[np.float64], by_run: Sequence[Series]
) -> tuple[float, int] | None:
    """Return the variance that the envelope adds to a mean ratio of FLOPs, and its degrees of freedom.

    `losses` and `costs` (shape: seeds) are the losses and the cumulative FLOPs of the evaluated model. `flops` (shape:
    runs) and `by_run` (one Series of losses by seed per run) describe the envelope. The variance follows from
    first-order error propagation: it is the sum over the envelope's runs of (d ratio / d mean loss)^2 times the
    variance of the mean loss. The variance of one seed is pooled over the runs. Return None if every run has one seed.
    """
    if (pool := within_run_variance(by_run)) is None:
        return None
    means, step = np.array([run.mean() for run in by_run]), 1e-6

    def ratio(shift: NDArray[np.float64]) -> float:
        return float(np.mean(costs / [flops_at_loss(loss, flops, means + shift) for loss in losses]))

    slopes = [(ratio(shift) - ratio(-shift)) / (2 * step) for shift in step * np.eye(len(means))]
    return float(sum(slope**2 * pool[0] / len(run) for slope, run in zip(slopes, by_run, strict=True))), pool[1]
