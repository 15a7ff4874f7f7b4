"""Several residual streams that every sub-layer reads from, mixes and writes to."""

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
"""How a sub-layer reads the streams, what carries them past it, and how its output is written to them."""


class HyperConnections(DepthSpec):
    """Base of the mixers with n residual streams in place of one (arXiv:2409.19606, eq. 2).

    Around a sub-layer T the streams H (n x width) of a token become A_r^T H + B^T T(A_m^T H): A_m (n x 1) makes what T
    reads, A_r (n x n) what is carried past it, and B (1 x n) writes T's output. The streams begin as n copies of the
    embedded tokens, and the final norm reads their sum (section 2.1).
    """

    streams: int = Field(default=4, ge=1, le=64)
    """n: number of residual streams; the papers' expansion rate."""

    def shapes(self, width: int | None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned tensors of a sub-layer; those called `static` are not decayed.

        By default that is [A_m, A_r, B^T]: row i has what is read of stream i, what of it goes to each stream, and what
        is written to it.
        """
        return {"static": (self.streams, self.streams + 2)}

    passes: ClassVar[int] = 10
    """How often all streams of a sub-layer are read or written in a training step. Forward both the product that
    carries them and the sum with the output read and write them. Backward the product's gradients read them three times
    and write them once, and the sum with the gradient of what was read reads and writes them."""

    def bytes_moved(self, layers: int, width: int) -> int:
        return 4 * self.passes * self.streams * 2 * layers * width

    def matmul_flops(self, layers: int, width: int) -> int:
        """FLOPs of matrix products per token: what every sub-layer reads and carries."""
        return 2 * (2 * layers * self.streams * (self.streams + 1) * width)

    def saved_elements(self, width: int) -> int:
        """Estimate of the numbers kept per token and block: in both sub-layers the streams, and what is written."""
        return 2 * (self.streams + 1) * width


class StaticHyperConnections(HyperConnections):
    """H <- A_r^T H + B^T T(A_m^T H), all weights learned numbers: static Hyper-Connections (arXiv:2409.19606, eq. 1-5).

    In sub-layer k (attention and feed-forward one each, counted from 1) A_m starts as the unit vector e_(k mod n), A_r
    as the identity and B as ones (eq. 14), so all streams of a fresh model are the plain one. The weights are not
    decayed (section 4). Variant: the output matrices of the sub-layers start as in the plain model, so that both can be
    compared by seed; the paper scales their standard deviation by the root of n.
    """

    kind: Literal["static_hyper_connections"] = "static_hyper_connections"


History = dict[int, tuple[Streams, Weights]]
"""By sub-layer, the streams in front of it and its weights.

Entries are set by place, so a block that is computed again (activation checkpointing) finds what it found before.
"""


class HyperConnectionsLayer(Mixer):
    """Base of the modules of `HyperConnections`: all but where the weights come from."""

    static: nn.ParameterList

    def __init__(self, layers: int, width: int | None, spec: HyperConnections) -> None:
        super().__init__()
        self.spec: Any = spec
        self.sites, self.streams = 2 * layers, spec.streams
        for name, shape in spec.shapes(width).items():
            tensors = (nn.Parameter(torch.empty(shape)) for _ in range(self.sites))
            self.register_module(name, nn.ParameterList(tensors))
        self.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        return {f"static.{index}" for index in range(self.sites)}

    def connections(self, site: int, streams: Streams) -> Weights:
        """Return the weights of sub-layer `site`, as they are multiplied with the streams: A_m^T, A_r^T and B^T."""
        raise NotImplementedError

    def begin(self, x: Stream) -> tuple[Stream, History]:
        """Copy X_0 into all streams."""
        history: History = {}
        streams = x.unsqueeze(-2).expand(-1, -1, self.streams, -1)
        return self._read(1, streams, history), history

    def add(self, site: int, x: Stream, update: Stream, history: History) -> Stream:
        """Carry the streams past the sub-layer, write its output to them, and return what the next one reads."""
        check_index("sub-layer", site, self.sites)
        streams, (_, carry, write) = history[site]
        if not torch.is_grad_enabled():
            del history[site]
        streams = (product(carry, streams) + write * update.unsqueeze(-2)).to(streams.dtype)
        return streams.sum(dim=-2) if site == self.sites else self._read(site + 1, streams, history)

    def _read(self, site: int, streams: Streams, history: History) -> Stream:
        weights = self.connections(site, streams)
        history[site] = streams, weights
        return product(weights[0], streams).squeeze(-2).to(streams.dtype)


class StaticHyperConnectionsLayer(HyperConnectionsLayer, of=StaticHyperConnections):
    """The module of `StaticHyperConnections`."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set eq. 14: sub-layer k reads stream k mod n, carries every stream as it is, and writes to all alike."""
        for site, table in enumerate(self.static, start=1):
            table.zero_()
            table[site % len(table), 0] = 1.0
            table[:, 1:-1].fill_diagonal_(1.0)
            table[:, -1] = 1.0

    def connections(self, site: int, streams: Streams) -> Weights:
        table = self.static[site - 1]
        wide = torch.promote_types(table.dtype, torch.float32)
        return split(table.to(wide).expand(*streams.shape[:2], -1, -1))


def split(table: Float[Tensor, "batch time streams columns"]) -> Weights:
    """Return A_m^T, A_r^T and B^T of [A_m, A_r, B^T]."""
    read, carry, write = torch.split(table, [1, table.shape[-2], 1], dim=-1)
    return read.mT, carry.mT, write


def product(
    left: Float[Tensor, "batch time *rows inner"], right: Float[Tensor, "*any inner columns"]
) -> Float[Tensor, "batch time *rows columns"]:
    """Return the matrix product, in float32 at least, also under autocast."""
    wide = torch.promote_types(right.dtype, torch.float32)
    with without_autocast(right):
        return left.to(wide) @ right.to(wide)
