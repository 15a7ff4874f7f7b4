"""Hyper-Connections: several residual streams that every sub-layer reads, mixes and writes."""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from formerlab.layers.autocast import without_autocast
from formerlab.layers.depth.identity import DepthSpec, Mixer, Stream, check_index

Streams = Float[Tensor, "batch time streams width"]
Weights = tuple[
    Float[Tensor, "batch time 1 streams"],
    Float[Tensor, "batch time streams streams"],
    Float[Tensor, "batch time streams 1"],
]
"""A_m^T (combines the streams into the input of a sub-layer), A_r^T (mixes the streams) and B^T (adds the output)."""


class HyperConnections(DepthSpec):
    """Base of the mixers with n residual streams (arXiv:2409.19606, eq. 2).

    A sub-layer T maps the streams H (n x width) of a token to A_r^T H + B^T T(A_m^T H), with A_m (n x 1), A_r (n x n)
    and B (1 x n). The streams start as n copies of the embedded tokens, and the final norm reads their sum (section
    2.1).
    """

    streams: int = Field(default=4, ge=1, le=64)
    """n: number of residual streams (the papers' expansion rate)."""

    def shapes(self, width: int | None) -> dict[str, tuple[int, ...]]:
        """Return {name: shape} of the learned tensors of one sub-layer.

        `static` has no weight decay. In this class it contains [A_m, A_r, B^T], with one row per stream.
        """
        return {"static": (self.streams, self.streams + 2)}

    stream_accesses: ClassVar[int] = 10
    """Reads and writes of all streams per sub-layer and training step. Forward: product with A_r (1 read, 1 write), sum
    with the output (1 read, 1 write). Backward: product (3 reads, 1 write), gradient accumulation (1 read, 1 write)."""

    def bytes_moved(self, layers: int, width: int) -> int:
        return 4 * self.stream_accesses * self.streams * 2 * layers * width

    def matmul_flops(self, layers: int, width: int) -> int:
        """Return the FLOPs per token of the products with A_m and A_r."""
        return 2 * (2 * layers * self.streams * (self.streams + 1) * width)

    def saved_elements(self, width: int) -> int:
        """Estimate the saved elements per token and block: the streams and the output of both sub-layers."""
        return 2 * (self.streams + 1) * width


class StaticHyperConnections(HyperConnections):
    """H <- A_r^T H + B^T T(A_m^T H) with learned constant weights: static Hyper-Connections (arXiv:2409.19606, eq.
    1-5).

    In sub-layer k (from 1; attention and feed-forward each count as one), A_m starts as the unit vector e_(k mod n),
    A_r as the identity and B as ones (eq. 14). At initialisation, every stream therefore equals the stream of the plain
    model. The weights have no weight decay (section 4). Difference from the paper: the initial standard deviation of
    the output projections is not scaled by sqrt(n), so that models are comparable by seed.
    """

    kind: Literal["static_hyper_connections"] = "static_hyper_connections"


History = dict[int, tuple[Streams, Weights]]
"""Maps a sub-layer index to (input streams, weights). Activation checkpointing sets the same entries again."""


class HyperConnectionsLayer(Mixer):
    """Base of the modules of `HyperConnections`; subclasses compute the weights in `connections`."""

    static: nn.ParameterList

    def __init__(self, layers: int, width: int | None, spec: HyperConnections) -> None:
        super().__init__()
        self.spec: Any = spec
        self.sublayers, self.streams = 2 * layers, spec.streams
        for name, shape in spec.shapes(width).items():
            tensors = (nn.Parameter(torch.empty(shape)) for _ in range(self.sublayers))
            self.register_module(name, nn.ParameterList(tensors))
        self.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        return {f"static.{index}" for index in range(self.sublayers)}

    def connections(self, index: int, streams: Streams) -> Weights:
        """Return A_m^T, A_r^T and B^T of sub-layer `index`."""
        raise NotImplementedError

    def begin(self, x: Stream) -> tuple[Stream, History]:
        history: History = {}
        streams = x.unsqueeze(-2).expand(-1, -1, self.streams, -1)
        return self._read(1, streams, history), history

    def add(self, index: int, x: Stream, update: Stream, history: History) -> Stream:
        """Return the input of the next sub-layer; after the last sub-layer, return the sum of the streams."""
        check_index("sub-layer", index, self.sublayers)
        streams, (_, mix, write) = history[index]
        if not torch.is_grad_enabled():
            del history[index]
        streams = (product(mix, streams) + write * update.unsqueeze(-2)).to(streams.dtype)
        return streams.sum(dim=-2) if index == self.sublayers else self._read(index + 1, streams, history)

    def _read(self, index: int, streams: Streams, history: History) -> Stream:
        weights = self.connections(index, streams)
        history[index] = streams, weights
        return product(weights[0], streams).squeeze(-2).to(streams.dtype)


class StaticHyperConnectionsLayer(HyperConnectionsLayer, of=StaticHyperConnections):
    """The module of `StaticHyperConnections`."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the values of eq. 14."""
        for index, weights in enumerate(self.static, start=1):
            weights.zero_()
            weights[index % len(weights), 0] = 1.0
            weights[:, 1:-1].fill_diagonal_(1.0)
            weights[:, -1] = 1.0

    def connections(self, index: int, streams: Streams) -> Weights:
        weights = self.static[index - 1]
        compute_dtype = torch.promote_types(weights.dtype, torch.float32)
        return split(weights.to(compute_dtype).expand(*streams.shape[:2], -1, -1))


def split(weights: Float[Tensor, "batch time streams columns"]) -> Weights:
    """Split [A_m, A_r, B^T] into A_m^T, A_r^T and B^T."""
    read, mix, write = torch.split(weights, [1, weights.shape[-2], 1], dim=-1)
    return read.mT, mix.mT, write


def product(
    left: Float[Tensor, "batch time *rows inner"], right: Float[Tensor, "*any inner columns"]
) -> Float[Tensor, "batch time *rows columns"]:
    """Return the matrix product in at least float32, also under autocast."""
    compute_dtype = torch.promote_types(right.dtype, torch.float32)
    with without_autocast(right):
        return left.to(compute_dtype) @ right.to(compute_dtype)
