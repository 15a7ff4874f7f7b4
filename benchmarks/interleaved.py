"""Timing of variants against each other: in turn, in one process, with an interval for every ratio.

The allocator matters on CPUs: `keep_memory()` makes malloc keep what it has, for all variants alike, by starting the
process anew with its settings in the environment.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


def keep_memory() -> None:
    """Start this program anew with malloc's settings, unless it runs with them already."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


def setting(threads: int) -> str:
    """Return what a reader has to know of the machine, in one line."""
    import torch

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    allocator = " ".join(f"{name}={value}" for name, value in ALLOCATOR.items())
    return f"torch {torch.__version__}, {threads} threads, load {load}, {allocator}"


def rounds(variants: dict[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Run the variants in turn, `count` times after one that does not count; each returns its units of work.

    Returns seconds per unit. The first of a round moves on with every round, so that none always follows the same.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(count + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            units = variants[name]()
            seconds = (time.perf_counter() - start) / units
            if turn:
                times[name].append(seconds)
    return times


def ratio(times: list[float], anchor: list[float]) -> tuple[float, float, float]:
    """Return the median of the ratios of each round, and an interval that covers it with 95 %, by their order."""
    ratios = sorted(a / b for a, b in zip(times, anchor, strict=True))
    outside, below = -1, 0.0  # how many may lie beyond either end: a sign test
    while below + math.comb(len(ratios), outside + 1) / 2 ** len(ratios) <= 0.025:
        outside += 1
        below += math.comb(len(ratios), outside) / 2 ** len(ratios)
    outside = max(outside, 0)
    return statistics.median(ratios), ratios[outside], ratios[-1 - outside]


def verdict(name: str, measured: tuple[float, float, float], bar: float, *, at_most: bool) -> str:
    """Say whether a ratio meets its bar."""
    median, low, high = measured
    met = median <= bar if at_most else median >= bar
    sign = "<=" if at_most else ">="
    return f"  {'met   ' if met else 'MISSED'} {name}: {median:.3f} [{low:.3f}, {high:.3f}] {sign} {bar}"
