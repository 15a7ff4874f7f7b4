"""Hyper-Connections with weights that depend on the token."""

from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from formerlab.layers.depth.hyper_connections import (
    HyperConnections,
    StaticHyperConnectionsLayer,
    Streams,
    Weights,
    product,
    split,
)
from formerlab.spec import Epsilon

SCALE = 0.01
"""Initial s_alpha and s_beta (arXiv:2409.19606, algorithm 2)."""


class DynamicHyperConnections(HyperConnections):
    """H <- A_r(H)^T H + B(H)^T T(A_m(H)^T H): dynamic Hyper-Connections (arXiv:2409.19606, eq. 8-13).

    The weights of a token are [A_m(H), A_r(H), B(H)^T] = s tanh(norm(H) W) + [A_m, A_r, B^T], one row per stream. A_m
    and A_r share one scalar s, B has another, and both start at 0.01. W starts at zero, so the model starts equal to
    `StaticHyperConnections`. Weight decay applies to W and s only (section 4). The norm is a LayerNorm of every stream
    without gain and bias, as in the paper's models.
    """

    kind: Literal["dynamic_hyper_connections"] = "dynamic_hyper_connections"
    stream_accesses: ClassVar[int] = HyperConnections.stream_accesses + 11
    """Additional reads and writes. Forward: norm (1 read, 1 write), product with W (1 read), product with A_m (1 read).
    Backward: product with A_m (1 read), product with W (1 read, 1 write), norm (2 reads, 1 write), gradient
    accumulation (1 read)."""
    eps: Epsilon = 1e-5
    """Added to the variance in the norm."""

    def shapes(self, width: int | None) -> dict[str, tuple[int, ...]]:
        return super().shapes(width) | {"dynamic": (self.streams + 2, width or 0), "scale": (2,)}

    def matmul_flops(self, layers: int, width: int) -> int:
        """Return the FLOPs per token of the products with A_m and A_r, and of the products that compute the weights."""
        return super().matmul_flops(layers, width) + 2 * (2 * layers * self.streams * width * (self.streams + 2))

    def saved_elements(self, width: int) -> int:
        """Add the float32 normalised streams (4 n width), and 2 width to match the count of a compiled step."""
        return super().saved_elements(width) + (4 * self.streams + 2) * width


class DynamicHyperConnectionsLayer(StaticHyperConnectionsLayer, of=DynamicHyperConnections):
    """The module of `DynamicHyperConnections`."""

    dynamic: nn.ParameterList
    scale: nn.ParameterList

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for weights, scale in zip(self.dynamic, self.scale, strict=True):
            nn.init.zeros_(weights)
            nn.init.constant_(scale, SCALE)

    def connections(self, index: int, streams: Streams) -> Weights:
        normed = F.layer_norm(streams, streams.shape[-1:], eps=self.spec.eps)
        dynamic = product(normed, self.dynamic[index - 1].mT).tanh()
        alpha, beta = self.scale[index - 1].split(1)
        scale = torch.cat((alpha.expand(self.streams + 1), beta))
        return split(scale * dynamic + self.static[index - 1])
