"""Depth-weighted averages of DenseFormer."""

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formerlab.layers.identity import History, Mixer, Stream
from formerlab.spec import Spec


class DepthWeightedAverage(Spec):
    """Y_i = sum over j in S_i of alpha_ij X_j, S_i = {j <= i : j = i mod k}, where p divides i; else Y_i = X_i
    (arXiv:2402.02622, section 3).

    k is the dilation, p the period; X_0 are the embedded tokens and X_j the RAW output of block j. The alphas are free
    real numbers, one per (destination, source), and start at the identity, so the model starts as the plain
    Transformer, bit for bit. With k > 1, X_0 enters only where k divides i; when p does not divide the depth the last
    block is not mixed.
    """

    kind: Literal["dwa"] = "dwa"
    dilation: PositiveInt = 1
    """k: average every k-th earlier output."""
    period: PositiveInt = 1
    """p: average after every p-th block."""

    def destinations(self, layers: int) -> list[int]:
        """Blocks (1-based) after which an average is taken."""
        return list(range(self.period, layers + 1, self.period))

    def sources(self, destination: int) -> list[int]:
        """Return the j of the X_j that enter Y_destination, in rising order; the last is the destination itself."""
        return list(range(destination % self.dilation, destination + 1, self.dilation))

    def build(self, layers: int) -> "DepthWeightedAverageLayer":
        """Return the module for `layers` blocks."""
        return DepthWeightedAverageLayer(layers, self)

    def params(self, layers: int) -> int:
        """Count of parameters; layers (layers + 3) / 2 for k = p = 1."""
        return sum(len(self.sources(i)) for i in self.destinations(layers))

    def flops(self, layers: int, width: int) -> int:
        """Elementwise FLOPs per token (2 per multiply-add)."""
        return 2 * self.params(layers) * width


class DepthWeightedAverageLayer(Mixer):
    """The module of `DepthWeightedAverage`: references to the raw outputs are kept, never copies."""

    def __init__(self, layers: int, spec: DepthWeightedAverage) -> None:
        super().__init__()
        self.sources = {i: spec.sources(i) for i in spec.destinations(layers)}
        self.alphas = nn.ParameterDict({str(i): nn.Parameter(torch.zeros(len(js))) for i, js in self.sources.items()})

    def reset(self, generator: torch.Generator) -> None:
        """Set the identity; nothing is drawn."""
        del generator
        for alpha in self.alphas.values():
            alpha.zero_()
            alpha[-1] = 1.0

    def begin(self, x: Stream) -> History:
        """Keep X_0."""
        return [x]

    def mix(self, index: int, x: Stream, history: History) -> Stream:
        """Return Y_index and keep X_index."""
        history.append(x)
        if index not in self.sources:
            return x
        alpha: Tensor = self.alphas[str(index)]
        mixed = alpha[-1] * x
        for weight, j in zip(alpha[:-1], self.sources[index][:-1], strict=True):
            mixed = mixed + weight * history[j]
        return mixed

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination, source, alpha) of every average."""
        return [
            (i, j, alpha)
            for i, js in self.sources.items()
            for j, alpha in zip(js, self.alphas[str(i)].tolist(), strict=True)
        ]
