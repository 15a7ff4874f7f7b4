"""What the benchmarks share: variants that take turns, ratios within a round, intervals by order statistics, bars.

The allocator matters on CPUs: each calls `native.keep_memory` for all variants alike, as the stages do.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


def setting(threads: int, device: str = "cpu") -> str:
    """Return what a reader has to know of the machine, in one line."""
    import torch

    from formerlab.training.provenance import device_name

    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{device_name(torch.device(device))}, {threads} threads"
    return f"{machine}, torch {torch.__version__}, load {load}"


def rounds_of(
    steps: dict[str, Callable[[], object]],
    rounds: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of every step, round by round; a step that returns a number has done as many units of work.

    Steps take turns. The first of a round moves on with every round, so that none always follows the same; a round
    before all others warms up. `clock` is `time.process_time` for work on one thread beside other programs.
    """
    import torch

    from formerlab.evaluation.timing.timing import interleaved

    wait = torch.cuda.synchronize if device == "cuda" else int
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn, _, name in interleaved(list(steps), rounds):
        wait()
        start = clock()
        units = steps[name]()
        wait()
        if turn:
            seconds[name].append((clock() - start) / (units if isinstance(units, int) else 1))
    return seconds


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


class Bar(NamedTuple):
    """A bound on a ratio of a variant to its yardstick; met when the ratio's interval reaches it."""

    variant: str
    yardstick: str
    bound: float
    quantity: str = "time"

    def verdict(self, measured: tuple[float, float, float]) -> str:
        """Say whether it is met by a ratio and its interval; a speed has to reach the bound from above."""
        middle, low, high = measured
        speed = self.quantity == "speed"
        met = high >= self.bound if speed else low <= self.bound
        sign = ">=" if speed else "<="
        return (
            f"{'met' if met else 'MISSED'}: {self.quantity} of {self.variant} / {self.yardstick} "
            f"{middle:.3f} [{low:.3f}, {high:.3f}] {sign} {self.bound}"
        )


def report(
    title: str, numbers: dict[str, list[float]], yardstick: Callable[[str], str], bars: Iterable[Bar], unit: str = "ms"
) -> None:
    """Print a table of seconds, or of bytes as MB, and their ratios to those of a yardstick; and which bars are met."""
    factor = {"ms": 1e3, "MB": 1e-6}[unit]
    print(f"\n### {title}\n\n| variant | {unit} | ratio | 95 % interval | to |\n|---|---|---|---|---|")
    for name, own in numbers.items():
        middle, low, high = ratio(own, numbers[yardstick(name)])
        print(
            f"| {name} | {factor * statistics.median(own):.2f} | {middle:.3f} | {low:.3f} to {high:.3f} "
            f"| {yardstick(name)} |"
        )
    print()
    for bar in bars:
        if bar.variant in numbers:
            print(bar.verdict(ratio(numbers[bar.variant], numbers[bar.yardstick])))


def saved_bytes(forward: Callable[[], "Tensor"], given: Iterable["Tensor"]) -> int:
    """Return the bytes that `forward` keeps for its backward pass beyond what it was given, each storage once."""
    import torch

    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    kept: dict[int, int] = {}

    def note(tensor: "Tensor") -> "Tensor":
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    del output
    return sum(kept.values())
