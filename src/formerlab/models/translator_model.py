"""The modules of `Translator`: post-LN and pre-LN blocks, encoder and decoder."""

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.attention import AnyHeads, Mask, MultiHead, xavier_std
from formerlab.layers.block import Add
from formerlab.layers.depth.connection import Connection
from formerlab.layers.depth.identity import Mixer, Stream
from formerlab.layers.linear import LinearProjection
from formerlab.layers.mlp import MlpLayer
from formerlab.layers.position import PositionEncoding

if TYPE_CHECKING:
    from formerlab.models.translator import Translator

Extend = Callable[[int, AnyHeads, AnyHeads], tuple[AnyHeads, AnyHeads]]
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
        x = self.attention_connection(x, partial(self._attend, position, mask), partial(add, 2 * layer + 1))
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out

    def _attend(self, position: PositionEncoding, mask: Mask, x: Stream) -> Stream:
        q, memory = self.attention.queries(x, position), self.attention.memory(x, position)
        attended: Stream = self.attention(q, memory, mask)
        return attended


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
        source: tuple[AnyHeads, AnyHeads],
        mask: Mask,
        layer: int,
        add: Add,
        start: int = 0,
        extend: Extend | None = None,
    ) -> Stream:
        """Apply the block to target tokens at positions start, start + 1, ...; `source` are the encoder's k and v.

        With `extend` there is one token per row, which may see all that came before it.
        """
        extended = None if extend is None else partial(extend, layer)
        attend = partial(self._attend, position, start, extended)
        x = self.attention_connection(x, attend, partial(add, 2 * layer + 1))
        x = self.cross_connection(x, lambda x: self.cross(self.cross.queries(x), source, mask), Tensor.add)
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out

    def _attend(
        self,
        position: PositionEncoding,
        start: int,
        extend: Callable[[AnyHeads, AnyHeads], tuple[AnyHeads, AnyHeads]] | None,
        x: Stream,
    ) -> Stream:
        q, (k, v) = self.attention.queries(x, position, start), self.attention.memory(x, position, start)
        memory = (k, v) if extend is None else extend(k, v)
        attended: Stream = self.attention(q, memory, causal=extend is None)
        return attended


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


if TYPE_CHECKING:
    from formerlab.models.translator import Translator

Tokens = Int[Tensor, "batch time"]


class Encoded(NamedTuple):
    """What the decoder reads of source sentences: keys and values of every layer, computed once."""

    layers: list[tuple[AnyHeads, AnyHeads]]
    mask: Mask
    """Which source tokens are real."""

    def select(self, rows: Int[Tensor, " kept"]) -> "Encoded":
        """Return some of the sentences."""
        return Encoded([(k[rows], v[rows]) for k, v in self.layers], self.mask[rows])


class TranslatorModel(nn.Module):
    """Encoder, decoder, embedding and logits."""

    def __init__(self, spec: "Translator") -> None:
        super().__init__()
        self.spec = spec
        width, d_head = spec.width, spec.key_width
        self.embedding = nn.Parameter(torch.empty(spec.vocabulary, width))
        self.target_embedding, self.head = (
            None if spec.tied else nn.Parameter(torch.empty(spec.vocabulary, width)) for _ in range(2)
        )
        self.source_position = spec.position.build(spec.context, width, d_head)
        self.target_position = spec.position.build(spec.context, width, d_head)
        self.dropout = nn.Dropout(spec.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(spec) for _ in range(spec.layers))
        self.decoder = nn.ModuleList(DecoderBlock(spec) for _ in range(spec.layers))
        self.mixer = MixerOfStacks(spec)
        pre = spec.order == "pre"
        self.encoder_norm = spec.norm.build(width) if pre else nn.Identity()
        self.decoder_norm = spec.norm.build(width) if pre else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings and an untied head; `initialise` draws the blocks as well."""
        for weight in (self.embedding, self.target_embedding, self.head):
            if weight is not None:
                nn.init.normal_(weight, 0.0, self.spec.embedding_deviation)

    def forward(
        self, source: Tokens, real: Bool[Tensor, "batch source"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Return the logits of the token after each target token, given padded sources of which `real` are tokens."""
        return self.decode(target, self.encode(source, real))

    def encode(self, source: Tokens, real: Bool[Tensor, "batch time"]) -> Encoded:
        """Return the keys and values that the decoder's layers read of the sources."""
        mask = real[:, None, None, :]
        x = self._embed(source, self.embedding, self.source_position, 0)
        x, history = self.mixer.encoder.begin(x)
        add = functools.partial(self.mixer.encoder.add, history=history)
        for index, block in enumerate(self.encoder):
            x = self.mixer.encoder.mix(index + 1, block(x, self.source_position, mask, index, add), history)
        x = self.encoder_norm(x)
        blocks = cast("list[DecoderBlock]", list(self.decoder))
        return Encoded([block.cross.memory(x) for block in blocks], mask)

    def decode(
        self, target: Int[Tensor, "rows time"], encoded: Encoded, start: int = 0, extend: Extend | None = None
    ) -> Float[Tensor, "rows time vocabulary"]:
        """Return the logits after target tokens at positions start, start + 1, ...

        With `extend` each row holds the one newest token, and there may be several rows for each source sentence.
        """
        embedding = self.embedding if self.target_embedding is None else self.target_embedding
        x = self._embed(target, embedding, self.target_position, start)
        x, history = self.mixer.decoder.begin(x)
        add = functools.partial(self.mixer.decoder.add, history=history)
        for index, block in enumerate(self.decoder):
            raw = block(x, self.target_position, encoded.layers[index], encoded.mask, index, add, start, extend)
            x = self.mixer.decoder.mix(index + 1, raw, history)
        return F.linear(self.decoder_norm(x), self.embedding if self.head is None else self.head)

    def _embed(self, tokens: Tokens, table: Tensor, position: PositionEncoding, start: int) -> Stream:
        if start + tokens.shape[1] > self.spec.context:
            raise ValueError(f"{start + tokens.shape[1]} tokens exceed the model's context of {self.spec.context}")
        x = F.embedding(tokens, table) * math.sqrt(self.spec.width)
        embedded: Stream = self.dropout(position.embed(x, start))
        return embedded


class MixerOfStacks(nn.Module):
    """The depth mixers of both stacks."""

    def __init__(self, spec: "Translator") -> None:
        super().__init__()
        self.encoder: Mixer = spec.depth.build(spec.layers, spec.width)
        self.decoder: Mixer = spec.depth.build(spec.layers, spec.width)
        self.layers = spec.layers

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination, source, weight) of every mixing weight; the decoder's blocks count on from N + 1.

        So block 0 is the source's embedding, N + 1 stands for the target's, and N + 1 + i is the decoder's block i.
        """
        offset = self.layers + 1
        later = [(i + offset, j + offset, weight) for i, j, weight in self.decoder.weights()]
        return [*self.encoder.weights(), *later]
