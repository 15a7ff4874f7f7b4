"""What the benchmarks share: variants that take turns, ratios within a round, intervals by order statistics."""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**33),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""Settings with which malloc keeps its memory; otherwise half of what is measured is the price of fresh pages."""


def keep_memory() -> None:
    """Start this program anew with the allocator's settings, which malloc reads at its start."""
    if any(os.environ.get(key) != value for key, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)


def rounds_of(steps: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of every step, round by round; steps take turns, in another order every round."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for index in range(rounds + 1):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            _synchronise(device)
            start = time.perf_counter()
            steps[name]()
            _synchronise(device)
            if index:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return median and its 95 % interval: the order statistics that cover it with at least that probability."""
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, 0
    while 2 * (outside + math.comb(n, rank) / 2**n) <= 0.05:
        outside += math.comb(n, rank) / 2**n
        rank += 1
    rank = max(rank, 1)
    return statistics.median(values), ordered[rank - 1], ordered[n - rank]


def ratio(own: list[float], base: list[float]) -> tuple[float, float, float]:
    """Return the ratio of times within rounds: median and interval."""
    return interval([a / b for a, b in zip(own, base, strict=True)])


def saved_bytes(forward: Callable[[], Tensor], given: Iterable[Tensor]) -> int:
    """Return the bytes that `forward` keeps for its backward pass beyond what it was given, each storage once."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output
    return sum(kept.values())
