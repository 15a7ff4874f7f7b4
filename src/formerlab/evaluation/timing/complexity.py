"""The stage `complexity`: multiply-adds, time, memory and path length of the layer types of arXiv:1706.03762, Table 1.

As in the table, the operation of self-attention excludes the projections.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from formerlab.evaluation.measurement import MeasuredRun, Measurement
from formerlab.evaluation.timing.timing import seconds
from formerlab.spec import Count, Size

LayerName = Literal["self_attention", "recurrent", "convolution", "restricted"]
LAYERS: tuple[LayerName, ...] = ("self_attention", "recurrent", "convolution", "restricted")


class Complexity(Measurement):
    """Settings of `complexity`."""

    lengths: tuple[Size, ...] = (64, 128, 256, 512, 1024)
    """Sequence lengths n, measured at the first of `widths`."""
    widths: tuple[Size, ...] = (64, 128, 256, 512)
    """Widths d, measured at the first of `lengths`."""
    kernel: Size = 3
    """Kernel size k of the convolution; odd."""
    neighbourhood: Size = 32
    """Neighbourhood r of restricted self-attention; divides all lengths, because the timed layer has blocks of r."""
    repeats: Count = 5
    """Number of timed calls; the shortest time is reported."""

    @model_validator(mode="after")
    def _check(self) -> "Complexity":
        if self.kernel < 3 or self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel}: give an odd number, at least 3")
        if uneven := [n for n in self.lengths if n % self.neighbourhood]:
            raise ValueError(f"neighbourhood={self.neighbourhood} does not divide lengths={uneven}; change one of them")
        return self


def measure(run: MeasuredRun, settings: Complexity) -> None:
    """Write complexity.csv, which does not depend on the weights of the run."""
    run.write("complexity.csv", complexity_rows(settings))


def complexity_rows(spec: Complexity) -> Iterator[list[Any]]:
    """Yield one row per layer type and per length or width."""
    points = [("n", n, spec.widths[0]) for n in spec.lengths] + [("d", spec.lengths[0], d) for d in spec.widths]
    for name in LAYERS:
        for axis, n, d in points:
            count, path = multiply_adds(name, n, d, spec), longest_path(name, n, spec)
            layer = _layer(name, n, d, spec)
            with torch.no_grad():  # the first call warms up
                _, *times = [seconds(layer, torch.device("cpu")) for _ in range(1 + spec.repeats)]
            memory_bytes = 4 * tensor_elements(name, n, d, spec)
            yield [name, axis, n, d, spec.kernel, spec.neighbourhood, count, path, min(times), memory_bytes]


def multiply_adds(name: LayerName, n: int, d: int, spec: Complexity) -> int:
    """Count the multiply-adds of a layer: O(n^2 d) for self-attention, O(n d^2) for a recurrent layer, O(k n d^2) for a
    convolution, O(r n d) for restricted self-attention (arXiv:1706.03762, Table 1).
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        _layer(name, n, d, spec)()
    return int(counter.get_total_flops()) // 2


def longest_path(name: LayerName, n: int, spec: Complexity) -> int:
    """Return the maximum path length between two positions: the number of layers, or of recurrent steps.

    Table 1 assumes that the convolution of layer i (from 0) has dilation k^i and reaches k - 1 dilated positions to one
    side, and that restricted attention sees r positions on each side. The timed layers have undilated kernels and
    blocks of r positions.
    """
    if name == "recurrent":
        return n - 1
    reach = {"self_attention": n, "restricted": spec.neighbourhood}
    return layers_needed(n - 1, lambda layer: reach.get(name, (spec.kernel - 1) * spec.kernel**layer))


def layers_needed(distance: int, reach: Callable[[int], int]) -> int:
    """Return the number of layers that connect two positions at this distance, if layer i (from 0) adds reach(i)."""
    reached, layers = 0, 0
    while reached < distance:
        reached, layers = reached + reach(layers), layers + 1
    return layers


def tensor_elements(name: LayerName, n: int, d: int, spec: Complexity) -> int:
    """Return the number of elements in inputs, weights, output, and one attention matrix or unfolded convolution input.

    Unlike the timed operation, self-attention has separate queries, keys and values, and recurrence has two matrices.
    """
    inner = {
        "self_attention": 2 * n * d + n * n,
        "recurrent": 2 * d * d,
        "convolution": spec.kernel * d * d + spec.kernel * n * d,
        "restricted": 2 * n * d + n * spec.neighbourhood,
    }
    return 2 * n * d + inner[name]


def _layer(name: LayerName, n: int, d: int, spec: Complexity) -> Callable[[], Tensor]:
    """Return the operation of a layer type on random inputs, on the current default device."""
    k, r = spec.kernel, spec.neighbourhood
    x = torch.randn(n, d)
    if name == "self_attention":
        return lambda: torch.softmax(x @ x.T / math.sqrt(d), dim=-1) @ x
    if name == "restricted":
        blocks = x.view(n // r, r, d)
        return lambda: torch.softmax(blocks @ blocks.transpose(1, 2) / math.sqrt(d), dim=-1) @ blocks
    if name == "convolution":
        weight = torch.randn(d, d, k)
        return lambda: F.conv1d(x.T[None], weight, padding=k // 2)
    w = torch.randn(d, d) / math.sqrt(d)

    def recur() -> Tensor:
        h = torch.zeros(1, d)
        for row in x.split(1):  # type: ignore[no-untyped-call]
            h = torch.tanh(row + h @ w)
        return h

    return recur
