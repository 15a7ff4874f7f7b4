"""The exact claim about Table 1 of arXiv:1706.03762: costs and path lengths of four layer types, by counting."""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool
from torch.utils.flop_counter import FlopCounterMode

from formerlab.evaluation.timing.complexity import LAYERS, Complexity, multiply_adds

GRID = Complexity(lengths=(64, 128, 256, 512), widths=(64, 128, 256, 512))
"""Doublings of n and of d, with kernel k = 3 and neighbourhood r = 32."""

PATH_LENGTHS = (32, 64, 128)
"""Lengths at which paths are searched; r divides them."""

Edges = Bool[np.ndarray, "n n"]
"""Whether a layer joins input position (row) to output position (column)."""


def complexity() -> dict[str, float]:
    """Return slopes of counted multiply-adds, the largest deviation of path lengths from the table, and the traps.

    The table leaves out the projections of self-attention; `slope:self_attention_with_projections:n` has them, for
    lengths below the width. It means kernels that are dilated and causal, and r positions to either side; kernels
    without dilation and r positions in all make the paths longer by the factors that are given.
    """
    n, k, r = PATH_LENGTHS[-1], GRID.kernel, GRID.neighbourhood
    contiguous = _layers_needed(n, lambda layer: _taps(n, 1), ahead_only=True)
    centred = _layers_needed(n, lambda layer: _near(n, r // 2))
    worst = max(abs(_path(name, n) - _table(name, n)) for name in LAYERS for n in PATH_LENGTHS)
    return _slopes() | {
        "path_lengths_against_table1_rounded_up": float(worst),
        "path_contiguous_kernels_times_k_over_n": contiguous * k / n,
        "path_centred_neighbourhood_times_r_over_n": centred * r / n,
    }


def _slopes() -> dict[str, float]:
    """Return the least-squares slope of ln(multiply-adds) on ln(n) and on ln(d)."""
    n, d = GRID.lengths[0], GRID.widths[0]
    slopes = {}
    for name in LAYERS:
        by_length = [multiply_adds(name, length, d, GRID) for length in GRID.lengths]
        by_width = [multiply_adds(name, n, width, GRID) for width in GRID.widths]
        slopes[f"slope:{name}:n"] = _slope(GRID.lengths, by_length)
        slopes[f"slope:{name}:d"] = _slope(GRID.widths, by_width)
    whole = [_attention_with_projections(length, 2048) for length in GRID.lengths]
    return slopes | {"slope:self_attention_with_projections:n": _slope(GRID.lengths, whole)}


def _slope(sizes: tuple[int, ...], counts: list[int]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(counts), 1)[0])


def _attention_with_projections(n: int, d: int) -> int:
    """Count the multiply-adds of queries, keys, values, mixing and output."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        x, weights = torch.empty(n, d), torch.empty(4, d, d)
        q, k, v = x @ weights[:3]
        _ = (torch.softmax(q @ k.T, dim=-1) @ v) @ weights[3]
    return int(counter.get_total_flops()) // 2


def _path(name: str, n: int) -> int:
    """Return the longest shortest path from an input position to an output position that depends on it."""
    if name == "recurrent":  # an input enters its state, and the states are a chain within one layer
        return 1 + _layers_needed(n, lambda layer: np.eye(n, dtype=bool) | np.eye(n, k=1, dtype=bool), ahead_only=True)
    if name == "convolution":
        return _layers_needed(n, lambda layer: _taps(n, GRID.kernel**layer), ahead_only=True)
    if name == "restricted":
        return _layers_needed(n, lambda layer: _near(n, GRID.neighbourhood))
    return _layers_needed(n, lambda layer: _near(n, n))


def _layers_needed(n: int, edges: Callable[[int], Edges], *, ahead_only: bool = False) -> int:
    """Return how many layers it takes until every output depends on every input (of those up to it)."""
    wanted = np.triu(np.ones((n, n), dtype=bool)) if ahead_only else np.ones((n, n), dtype=bool)
    reached, layers = np.eye(n, dtype=bool), 0
    while not reached[wanted].all():
        reached = (reached.astype(np.float32) @ edges(layers).astype(np.float32)) > 0
        layers += 1
    return layers


def _near(n: int, reach: int) -> Edges:
    """Join positions that are at most `reach` apart."""
    place = np.arange(n)
    return np.asarray(np.abs(place[:, None] - place) <= reach)


def _taps(n: int, dilation: int) -> Edges:
    """Join each position to itself and to the k - 1 after it that a causal kernel reaches."""
    taps = [np.eye(n, k=tap * dilation, dtype=bool) for tap in range(GRID.kernel)]
    return np.asarray(np.logical_or.reduce(taps))


def _table(name: str, n: int) -> int:
    """Return the maximum path length of Table 1, its order taken as a count and rounded up."""
    lengths = {
        "self_attention": 1.0,
        "recurrent": float(n),
        "convolution": math.log(n, GRID.kernel),
        "restricted": n / GRID.neighbourhood,
    }
    return math.ceil(lengths[name] - 1e-9)
