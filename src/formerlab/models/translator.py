"""The encoder-decoder of the original Transformer, with post-LN or pre-LN blocks.

It uses the same projections, feed-forward networks, norms, positions and depth mixers as `Decoder`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.block import Add, inner_elements
from formerlab.layers.depth.identity import Identity, Mixer, Stream
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.initialization import seeded
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp, MlpLayer
from formerlab.layers.norm import LayerNorm, Norm
from formerlab.layers.position import Position, PositionEncoding, Rotary, Sinusoidal
from formerlab.layers.projection import FeedForward, Projection
from formerlab.layers.shapes import AnyHeads, Mask
from formerlab.models.multi_head import MultiHead, xavier_std
from formerlab.spec import Layers, Size, Spec, Std

Tokens = Int[Tensor, "batch time"]
Extend = Callable[[int, AnyHeads, AnyHeads], tuple[AnyHeads, AnyHeads]]
"""Function that appends keys and values to a layer's cache: (layer, k, v) -> all keys and values so far."""
Order = Literal["post", "pre"]
"""post: LN(x + sublayer(x)) (arXiv:1706.03762, section 3.1). pre: x + sublayer(LN(x)) (arXiv:2002.04745, Figure 1b)."""
Lengths = int | NDArray[np.int64]
"""Number of tokens of a sentence, or an array with one number per sentence."""


class Translator(Spec):
    """Encoder and decoder of `layers` blocks each (arXiv:1706.03762, Figure 1); the defaults are its base model.

    The input of both stacks is x = dropout(sqrt(d) E[token] + PE). Each stack has its own position encoding.
    """

    kind: Literal["translator"] = "translator"
    vocabulary: Size = 37000
    """Number of token ids, shared by both languages; a plan sets it from the data's tokenizer."""
    layers: Layers = 6
    """Number of blocks in each stack (N)."""
    width: Size = 512
    """Channels of the residual stream (d_model)."""
    heads: Size = 8
    """Number of attention heads (h)."""
    d_key: Size | None = None
    """Channels of queries and keys per head (d_k). The default is width / heads."""
    d_value: Size | None = None
    """Channels of values per head (d_v). The default is width / heads."""
    context: Size = 512
    """Maximum length of a sentence in tokens, including the end token."""
    position: Position = Sinusoidal()
    """Position encoding."""
    norm: Norm = LayerNorm()
    """Norm of every sub-layer; `order` gives its position."""
    order: Order = "post"
    """Position of the norms. post: after each addition, as published. pre: before each sub-layer and after the
    stack."""
    projection: Projection = Linear()
    """Query, key, value and output projections of attention."""
    feedforward: FeedForward = Mlp(activation="relu", bias=True)
    """Feed-forward network."""
    depth: DepthMixer = Identity()
    """Depth mixer of each stack."""
    tied: bool = True
    """Use one matrix E for source embedding, target embedding and logits; otherwise these are three matrices."""
    embedding_std: Std | None = None
    """Standard deviation of the initial embedding. The default is width^-1/2."""
    initial: Literal["xavier", "parts"] = "xavier"
    """Initial values of linear layers. xavier: variance 2 / (d_in + d_out). parts (of the spec): each layer
    uses the initial values of its own spec, `projection` or `feedforward`."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout of both embeddings and of the output of every sub-layer (P_drop)."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of attention probabilities (in the authors' code, not in the paper)."""
    relu_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of the hidden units of an MLP (in the authors' code, not in the paper)."""

    @model_validator(mode="after")
    def _check(self) -> "Translator":
        if self.width % self.heads and None in (self.d_key, self.d_value):
            raise ValueError(f"heads={self.heads} does not divide width={self.width}; give d_key and d_value")
        if isinstance(self.position, Rotary) and int(self.effective_d_key * self.position.fraction) < 2:
            sizes = f"d_key={self.effective_d_key}, position.fraction={self.position.fraction}"
            raise ValueError(f"rotary positions need at least 2 rotated channels per head: {sizes}")
        if self.relu_dropout and self.feedforward.kind != "mlp":
            raise ValueError(f"relu_dropout={self.relu_dropout} needs feedforward.kind=mlp")
        if self.depth.module.add is not Mixer.add:
            raise ValueError(
                f"depth.kind={self.depth.kind} is not supported: a translator's decoder block has three residual "
                "additions; use a mixer that only averages over blocks, such as dwa"
            )
        return self

    @property
    def effective_d_key(self) -> int:
        """d_k: `d_key` or its default, width / heads."""
        return self.width // self.heads if self.d_key is None else self.d_key

    @property
    def effective_d_value(self) -> int:
        """d_v: `d_value` or its default, width / heads."""
        return self.width // self.heads if self.d_value is None else self.d_value

    def build(self, seed: int = 0) -> "TranslatorModel":
        """Return the model with initial values sampled with the seed."""
        return seeded(lambda: TranslatorModel(self), seed)

    def params(self, *, embedding: bool = True) -> int:
        """Return the number of parameters, with or without embeddings, learned positions and head."""
        feedforward, norm = self.feedforward.params(self.width, self.width), self.norm.params(self.width)
        attention = sum(self.projection.params(*size) for size in self._projections)
        count = self.layers * (3 * attention + 2 * feedforward + 5 * norm)
        count += 2 * norm if self.order == "pre" else 0
        count += 2 * self.depth.params(self.layers, self.width)
        if embedding:
            count += self.vocabulary * self.width * (1 if self.tied else 3)
            count += 2 * self.position.params(self.context, self.width)
        return count

    def flops(self, source: Lengths, target: Lengths) -> Any:
        """Return the FLOPs of matrix products and attention in the forward pass of a pair of sentences.

        `source` and `target` are lengths, or arrays of lengths, in tokens. A multiply-add counts as 2 FLOPs.
        Attention counts all pairs of tokens, including masked pairs.
        """
        query, key, value, output = (self.projection.flops(*size) for size in self._projections)
        feedforward = self.feedforward.flops(self.width, self.width)
        flops = self.layers * (source + target) * (query + key + value + output + feedforward)
        flops += self.layers * (target * (query + output) + source * (key + value))
        flops += target * 2 * self.vocabulary * self.width
        flops += (source + target) * self.depth.matmul_flops(self.layers, self.width)
        pairs = source * source + target * target + target * source
        return flops + 2 * self.layers * self.heads * (self.effective_d_key + self.effective_d_value) * pairs

    def activation_elements(self) -> int:
        """Estimate the elements that all blocks save per target token, assuming one source token per target token.

        Depth mixers and the parameter tokens of `projection` are not counted.
        """
        return self.layers * (28 * self.width + 2 * inner_elements(self.width, self.feedforward))

    @property
    def _projections(self) -> tuple[tuple[int, int], ...]:
        keys, values = self.heads * self.effective_d_key, self.heads * self.effective_d_value
        return (self.width, keys), (self.width, keys), (self.width, values), (values, self.width)


class ResidualConnection(nn.Module):
    """post: LN(x + dropout(f(x))); pre: x + dropout(f(LN(x))) (arXiv:1706.03762, section 3.1; arXiv:2002.04745, Figure
    1).
    """

    def __init__(self, spec: Translator) -> None:
        super().__init__()
        self.norm, self.dropout, self.order = spec.norm.build(spec.width), nn.Dropout(spec.dropout), spec.order

    def forward(
        self, x: Stream, sublayer: Callable[[Stream], Stream], add: Callable[[Stream, Stream], Stream]
    ) -> Stream:
        if self.order == "pre":
            return add(x, self.dropout(sublayer(self.norm(x))))
        normed: Stream = self.norm(add(x, self.dropout(sublayer(x))))
        return normed


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward (arXiv:1706.03762, section 3.1)."""

    def __init__(self, spec: Translator) -> None:
        super().__init__()
        self.attention = MultiHead(spec)
        self.feedforward = build_feedforward(spec)
        self.attention_connection, self.feedforward_connection = ResidualConnection(spec), ResidualConnection(spec)

    def forward(self, x: Stream, position: PositionEncoding, mask: Mask, layer: int, add: Add) -> Stream:
        """Apply block `layer` (from 0) to padded sentences."""

        def attend(x: Stream) -> Stream:
            attended: Stream = self.attention(
                self.attention.queries(x, position), self.attention.memory(x, position), mask
            )
            return attended

        x = self.attention_connection(x, attend, partial(add, 2 * layer + 1))
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward (arXiv:1706.03762, section 3.1)."""

    def __init__(self, spec: Translator) -> None:
        super().__init__()
        self.attention, self.cross = MultiHead(spec), MultiHead(spec)
        self.feedforward = build_feedforward(spec)
        self.attention_connection, self.cross_connection, self.feedforward_connection = (
            ResidualConnection(spec) for _ in range(3)
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
        """Apply block `layer` (from 0) to target tokens at positions start, start + 1, ...

        `source` contains the keys and values of the encoder's output. With `extend`, x has one token per row, which
        attends to itself and to all earlier tokens in the cache.
        """

        def attend(x: Stream) -> Stream:
            q, (k, v) = self.attention.queries(x, position, start), self.attention.memory(x, position, start)
            memory = (k, v) if extend is None else extend(layer, k, v)
            attended: Stream = self.attention(q, memory, causal=extend is None)
            return attended

        x = self.attention_connection(x, attend, partial(add, 2 * layer + 1))
        x = self.cross_connection(x, lambda x: self.cross(self.cross.queries(x), source, mask), Tensor.add)
        out: Stream = self.feedforward_connection(x, self.feedforward, partial(add, 2 * layer + 2))
        return out


def build_feedforward(spec: Translator) -> nn.Module:
    """Build the feed-forward network of a block."""
    feedforward = spec.feedforward
    if feedforward.kind == "mlp" and spec.initial == "xavier":
        std = xavier_std(spec.width, feedforward.width(spec.width))
        feedforward = feedforward.model_copy(update={"std": std})
        layer: nn.Module = feedforward.build(spec.width, spec.width)
    else:
        layer = feedforward.build(spec.width, spec.width, layers=spec.layers, residual=True)
    if spec.relu_dropout and isinstance(layer, MlpLayer):
        layer.dropout = nn.Dropout(spec.relu_dropout)
    return layer


class Encoded(NamedTuple):
    """Encoded source sentences."""

    layers: list[tuple[AnyHeads, AnyHeads]]
    """Keys and values of the cross-attention of every block."""
    mask: Mask

    def select(self, rows: Int[Tensor, " rows"]) -> "Encoded":
        """Return the sentences with these indices."""
        return Encoded([(k[rows], v[rows]) for k, v in self.layers], self.mask[rows])


class TranslatorModel(nn.Module):
    """The module of `Translator`."""

    def __init__(self, spec: Translator) -> None:
        super().__init__()
        self.spec = spec
        width, d_head = spec.width, spec.effective_d_key
        self.embedding = nn.Parameter(torch.empty(spec.vocabulary, width))
        self.target_embedding, self.head = (
            None if spec.tied else nn.Parameter(torch.empty(spec.vocabulary, width)) for _ in range(2)
        )
        self.source_position = spec.position.build(spec.context, width, d_head)
        self.target_position = spec.position.build(spec.context, width, d_head)
        self.dropout = nn.Dropout(spec.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(spec) for _ in range(spec.layers))
        self.decoder = nn.ModuleList(DecoderBlock(spec) for _ in range(spec.layers))
        self.mixer = EncoderDecoderMixer(spec)
        pre = spec.order == "pre"
        self.encoder_norm = spec.norm.build(width) if pre else nn.Identity()
        self.decoder_norm = spec.norm.build(width) if pre else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample the embeddings and an untied head."""
        std = self.spec.embedding_std or 1 / math.sqrt(self.spec.width)
        for weight in (self.embedding, self.target_embedding, self.head):
            if weight is not None:
                nn.init.normal_(weight, 0.0, std)

    def forward(
        self, source: Tokens, source_mask: Bool[Tensor, "batch source"], target: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Return next-token logits of the target; `source_mask` is False at padding.

        Raises ValueError if a sentence exceeds the context.
        """
        return self.decode(target, self.encode(source, source_mask))

    def encode(self, source: Tokens, source_mask: Bool[Tensor, "batch time"]) -> Encoded:
        """Return the mask of the source, and the keys and values of the decoder's cross-attention.

        `source_mask` is False at padding. Raises ValueError if a sentence exceeds the context.
        """
        mask = source_mask[:, None, None, :]
        x = self._embed(source, self.embedding, self.source_position, 0)
        x, history = self.mixer.encoder.begin(x)
        add = partial(self.mixer.encoder.add, history=history)
        for index, block in enumerate(self.encoder):
            x = self.mixer.encoder.mix(index + 1, block(x, self.source_position, mask, index, add), history)
        x = self.encoder_norm(x)
        blocks = cast("list[DecoderBlock]", list(self.decoder))
        return Encoded([block.cross.memory(x) for block in blocks], mask)

    def decode(
        self, target: Int[Tensor, "rows time"], encoded: Encoded, start: int = 0, extend: Extend | None = None
    ) -> Float[Tensor, "rows time vocabulary"]:
        """Return next-token logits of target tokens at positions start, start + 1, ...

        With `extend` (cached decoding), each row contains one token. In beam search, the hypotheses of a source
        sentence are adjacent rows. Raises ValueError if a sentence exceeds the context.
        """
        embedding = self.embedding if self.target_embedding is None else self.target_embedding
        x = self._embed(target, embedding, self.target_position, start)
        x, history = self.mixer.decoder.begin(x)
        add = partial(self.mixer.decoder.add, history=history)
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


class EncoderDecoderMixer(nn.Module):
    """The depth mixers of the encoder and the decoder."""

    def __init__(self, spec: Translator) -> None:
        super().__init__()
        self.encoder: Mixer = spec.depth.build(spec.layers, spec.width)
        self.decoder: Mixer = spec.depth.build(spec.layers, spec.width)
        self.layers = spec.layers

    def weights(self) -> list[tuple[int, int, float]]:
        """Return (destination, source, weight) of the mixing weights as `Mixer.weights` does.

        With N blocks per stack, 0 is the source embedding, i is block i of the encoder, N + 1 is the target embedding,
        and N + 1 + i is block i of the decoder.
        """
        offset = self.layers + 1
        decoder_weights = [(i + offset, j + offset, weight) for i, j, weight in self.decoder.weights()]
        return [*self.encoder.weights(), *decoder_weights]
