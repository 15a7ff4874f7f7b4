"""Helpers shared by the benchmarks: options, interleaved timing, ratios with their intervals, and targets.

A round runs every variant once. On CPUs the allocator affects times, so CPU benchmarks call `native.keep_memory` for
all variants, as the stages do.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


def option_parser(description: str, rounds: int, threads: int = 2) -> argparse.ArgumentParser:
    """Return a parser with the options --rounds, --threads and --device."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


def begin(options: argparse.Namespace, *notes: str) -> None:
    """Set the threads of torch, and print device, threads, torch version, load and number of rounds, then `notes`."""
    import torch

    from formerlab.training.provenance import device_name

    torch.set_num_threads(options.threads)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{device_name(torch.device(options.device))}, {options.threads} threads"
    print(", ".join([machine, f"torch {torch.__version__}", f"load {load}", f"{options.rounds} rounds", *notes]))


def interleaved_seconds(
    steps: dict[str, Callable[[], object]],
    rounds: int,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per unit of work, for every step and round. A step returns its number of units, by default 1.

    Every round runs each step once; the order rotates from round to round. The first round is a warm-up and is not
    returned. Use `time.process_time` as `clock` for work on one thread of a busy machine.
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
    """Return the median and its 95 % interval, whose ends are order statistics.

    With fewer than six values the interval is the whole range, which covers less: 94 % with five values, 88 % with
    four.
    """
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, 0
    while 2 * (outside + math.comb(n, rank) / 2**n) <= 0.05:
        outside += math.comb(n, rank) / 2**n
        rank += 1
    rank = max(rank, 1)
    return statistics.median(values), ordered[rank - 1], ordered[n - rank]


def ratio(times: list[float], base: list[float]) -> tuple[float, float, float]:
    """Return the median, over rounds, of the ratio of times of the same round, and its interval."""
    return interval([a / b for a, b in zip(times, base, strict=True)])


class Target(NamedTuple):
    """A bound on the ratio of a variant to its baseline.

    The target is met if the whole interval of the ratio satisfies the bound, not met if no value of the interval
    satisfies it, and inconclusive otherwise.
    """

    variant: str
    baseline: str
    bound: float
    quantity: str = "time"

    def describe(self, measured: tuple[float, float, float]) -> str:
        """Describe whether a ratio and its interval meet the target.

        A speed must be at least the bound; a time and a memory size must be at most the bound.
        """
        median, low, high = measured
        speed = self.quantity == "speed"
        satisfied = [end >= self.bound if speed else end <= self.bound for end in (low, high)]
        outcome = "met" if all(satisfied) else "inconclusive" if any(satisfied) else "not met"
        sign = ">=" if speed else "<="
        return (
            f"{outcome}: {self.quantity} of {self.variant} / {self.baseline} "
            f"{median:.3f} [{low:.3f}, {high:.3f}] {sign} {self.bound}"
        )


def report(
    title: str,
    numbers: dict[str, list[float]],
    baseline: Callable[[str], str],
    targets: Iterable[Target],
    unit: str = "ms",
) -> None:
    """Print a table of times in ms (or of bytes in MB) with ratios to the baselines, and whether each target is met."""
    factor = {"ms": 1e3, "MB": 1e-6}[unit]
    print(f"\n### {title}\n\n| variant | {unit} | ratio | 95 % interval | to |\n|---|---|---|---|---|")
    for name, values in numbers.items():
        median, low, high = ratio(values, numbers[baseline(name)])
        print(
            f"| {name} | {factor * statistics.median(values):.2f} | {median:.3f} | {low:.3f} to {high:.3f} "
            f"| {baseline(name)} |"
        )
    print()
    for target in targets:
        if target.variant in numbers:
            print(target.describe(ratio(numbers[target.variant], numbers[target.baseline])))


def cache_bytes(cache: Any) -> int:
    """Return the bytes of the keys and values in a cache of transformers."""
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def saved_bytes(forward: Callable[[], "Tensor"], excluded_tensors: Iterable["Tensor"]) -> int:
    """Return the bytes of the activations that `forward` saves, without `excluded_tensors`. A storage counts once."""
    import torch

    excluded = {tensor.untyped_storage().data_ptr() for tensor in excluded_tensors}
    saved: dict[int, int] = {}

    def record(tensor: "Tensor") -> "Tensor":
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = forward()
    del output
    return sum(saved.values())
