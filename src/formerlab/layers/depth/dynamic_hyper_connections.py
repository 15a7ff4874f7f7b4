"""Hyper-Connections whose weights depend on the token."""

from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from formerlab.layers.depth.hyper_connections import (
    HyperConnections,
    HyperConnectionsLayer,
    Streams,
    Weights,
    product,
    reset_static,
    split,
    static_tables,
)
from formerlab.spec import Epsilon

SCALE = 0.01
"""Initial s_alpha and s_beta (arXiv:2409.19606, algorithm 2)."""


class DynamicHyperConnections(HyperConnections):
    """H <- A_r(H)^T H + B(H)^T T(A_m(H)^T H): dynamic Hyper-Connections (arXiv:2409.19606, eq. 8-13).

    Every token has weights of its own, [A_m(H), A_r(H), B(H)^T] = s tanh(norm(H) W) + [A_m, A_r, B^T], one row per
    stream; s is one number for A_m and A_r and one for B, both from 0.01. W starts at zero and the static part as in
    `StaticHyperConnections`, so a fresh model has its weights. The static part is not decayed, W and s are (section 4).
    The norm is a LayerNorm of every stream without gain and bias, as in the models of the paper.
    """

    label: ClassVar[str] = "Hyper-Connections, dynamic, n = {streams}"
    look: ClassVar[tuple[str, str]] = ("#4E9A9A", "H")
    kind: Literal["dynamic_hyper_connections"] = "dynamic_hyper_connections"
    eps: Epsilon = 1e-5
    """Added to the variance in the norm."""

    def build(self, layers: int, width: int) -> "DynamicHyperConnectionsLayer":
        """Return the module for `layers` blocks."""
        return DynamicHyperConnectionsLayer(layers, width, self)

    def params(self, layers: int, width: int) -> int:
        """Count of parameters: A_m, A_r, B, W and s of every sub-layer."""
        return 2 * layers * ((self.streams + width) * (self.streams + 2) + 2)

    def products(self, layers: int, width: int) -> int:
        """FLOPs of matrix products per token: what every sub-layer reads and carries, and its weights."""
        return super().products(layers, width) + 2 * (2 * layers * self.streams * width * (self.streams + 2))

    def kept(self, width: int) -> int:
        """Estimate of the numbers kept per token and block: the normalised streams as well, which are float32."""
        return super().kept(width) + (4 * self.streams + 2) * width


class DynamicHyperConnectionsLayer(HyperConnectionsLayer):
    """The module of `DynamicHyperConnections`."""

    def __init__(self, layers: int, width: int, spec: DynamicHyperConnections) -> None:
        super().__init__(layers, spec.streams)
        self.eps = spec.eps
        columns = spec.streams + 2
        self.static = static_tables(self.sites, spec.streams)
        self.dynamic = nn.ParameterList(nn.Parameter(torch.empty(columns, width)) for _ in range(self.sites))
        self.scale = nn.ParameterList(nn.Parameter(torch.empty(2)) for _ in range(self.sites))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the plain residual connection; nothing is drawn."""
        reset_static(self.static)
        for weights, scale in zip(self.dynamic, self.scale, strict=True):
            nn.init.zeros_(weights)
            nn.init.constant_(scale, SCALE)

    def connections(self, site: int, streams: Streams) -> Weights:
        """Return the weights of sub-layer `site`, made of the streams of every token."""
        normed = F.layer_norm(streams, streams.shape[-1:], eps=self.eps)
        made = product(normed, self.dynamic[site - 1].mT).tanh()
        alpha, beta = self.scale[site - 1].split(1)
        scale = torch.cat((alpha.expand(self.streams + 1), beta))
        return split(scale * made + self.static[site - 1])
