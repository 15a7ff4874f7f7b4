"""The blocks of a translator: an encoder's with two sub-layers, a decoder's with three."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.block import Add
from formerlab.layers.depth.connection import Connection
from formerlab.layers.depth.identity import Stream
from formerlab.layers.linear import LinearProjection
from formerlab.layers.mlp import MlpLayer
from formerlab.layers.multihead import Heads, Mask, MultiHead, xavier_std
from formerlab.layers.position import PositionEncoding

if TYPE_CHECKING:
    from formerlab.models.translator import Translator

Extend = Callable[[int, Heads, Heads], tuple[Heads, Heads]]
"""What new keys and values of a layer are appended to while decoding: (layer, k, v) -> all keys and values so far."""


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward (arXiv:1706.03762, section 3.1)."""

    def __init__(self, spec: "Translator") -> None:
        super().__init__()
        self.attention = attention_of(spec)
        self.feedforward = feedforward_of(spec)
        self.attention_connection, self.feedforward_connection = connection_of(spec), connection_of(spec)

    def forward(self, x: Stream, position: PositionEncoding, mask: Mask, layer: int, add: Add) -> Stream:
        """Apply the block to whole sentences."""

        def attend(x: Stream) -> Stream:
            attended: Tensor = self.attention(
                self.attention.queries(x, position), self.attention.memory(x, position), mask
            )
            return attended

        x = self.attention_connection(x, attend, partial(add, 2 * layer + 1))
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (arXiv:1706.03762, section 3.1)."""

    def __init__(self, spec: "Translator") -> None:
        super().__init__()
        self.attention, self.cross = attention_of(spec), attention_of(spec)
        self.feedforward = feedforward_of(spec)
        self.attention_connection, self.cross_connection, self.feedforward_connection = (
            connection_of(spec) for _ in range(3)
        )

    def forward(
        self,
        x: Stream,
        position: PositionEncoding,
        source: tuple[Heads, Heads],
        mask: Mask,
        layer: int,
        add: Add,
        start: int = 0,
        extend: Extend | None = None,
    ) -> Stream:
        """Apply the block to target tokens at positions start, start + 1, ...; `source` are the encoder's k and v.

        With `extend` there is one token per row, which may see all that came before it.
        """

        def attend(x: Stream) -> Stream:
            q, (k, v) = self.attention.queries(x, position, start), self.attention.memory(x, position, start)
            memory = (k, v) if extend is None else extend(layer, k, v)
            attended: Tensor = self.attention(q, memory, causal=extend is None)
            return attended

        x = self.attention_connection(x, attend, partial(add, 2 * layer + 1))
        x = self.cross_connection(x, lambda x: self.cross(self.cross.queries(x), source, mask), Tensor.add)
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out


class AfterDropout(LinearProjection):
    """A linear projection of what dropout leaves of its input, with the same place in the model and the same start."""

    def __init__(self, projection: LinearProjection, dropout: float) -> None:
        bias = projection.bias is not None
        super().__init__(projection.in_features, projection.out_features, bias=bias, std=projection.std)
        self.dropout = dropout

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Map every token."""
        return super().forward(F.dropout(x, self.dropout, self.training))


def attention_of(spec: "Translator") -> MultiHead:
    """Return an attention layer of the spec's sizes."""
    return MultiHead(
        spec.width,
        spec.heads,
        spec.key_width,
        spec.value_width,
        spec.projection,
        spec.attention_dropout,
        xavier=spec.initial == "xavier",
    )


def feedforward_of(spec: "Translator") -> nn.Module:
    """Return a feed-forward, with dropout between its layers where the spec asks for it."""
    feedforward = spec.feedforward
    if feedforward.kind == "mlp" and spec.initial == "xavier":
        std = xavier_std(spec.width, feedforward.width(spec.width))
        feedforward = feedforward.model_copy(update={"std": std})
        layer: nn.Module = feedforward.build(spec.width, spec.width)
    else:
        layer = feedforward.build(spec.width, spec.width, layers=spec.layers, residual=True)
    if spec.relu_dropout and isinstance(layer, MlpLayer):
        layer.outer = AfterDropout(layer.outer, spec.relu_dropout)
    return layer


def connection_of(spec: "Translator") -> Connection:
    """Return norm, dropout and addition around a sub-layer."""
    return Connection(spec.norm.build(spec.width), spec.dropout, spec.order)
