"""The encoder-decoder of the original Transformer, of the same parts as the decoder."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from formerlab.layers.depth.connection import Order
from formerlab.layers.depth.identity import Identity, Mixer
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.initial import seeded
from formerlab.layers.linear import Linear
from formerlab.layers.mlp import Mlp
from formerlab.layers.norm import LayerNorm, Norm
from formerlab.layers.position import Position, Rotary, Sinusoidal
from formerlab.layers.projection import FeedForward, Projection
from formerlab.models.activation_memory import inner_elements
from formerlab.models.translator_model import TranslatorModel
from formerlab.spec import Layers, Size, Spec, Std

Lengths = int | NDArray[np.int64]
"""Tokens of a sentence, or of many."""


class Translator(Spec):
    """Encoder and decoder of `layers` blocks each (arXiv:1706.03762, Figure 1); the defaults are its base model.

    x = dropout(sqrt(d) E[token] + PE) enters both stacks; one matrix E embeds source and target and gives the logits.
    Position tables belong to each stack, which matters where they are learned.
    """

    kind: Literal["translator"] = "translator"
    vocabulary: Size = 37000
    """Number of token ids, shared by both languages; a plan fills it from the data's tokenizer."""
    layers: Layers = 6
    """Blocks of the encoder, and of the decoder (N)."""
    width: Size = 512
    """Channels of the residual stream (d_model)."""
    heads: Size = 8
    """Attention heads (h)."""
    d_key: Size | None = None
    """Channels of a head's queries and keys; empty means width / heads."""
    d_value: Size | None = None
    """Channels of a head's values; empty means width / heads."""
    context: Size = 512
    """Longest sentence in tokens, its end included."""
    position: Position = Sinusoidal()
    """Position encoding."""
    norm: Norm = LayerNorm()
    """Norm around every sub-layer."""
    order: Order = "post"
    """Where the norms stand: after the addition, as published, or before the sub-layer, with one more after a stack."""
    projection: Projection = Linear()
    """Query, key, value and output projections of attention."""
    feedforward: FeedForward = Mlp(activation="relu", bias=True)
    """Feed-forward."""
    depth: DepthMixer = Identity()
    """Depth mixer, one in each stack."""
    tied: bool = True
    """One matrix for source, target and logits; else three."""
    embedding_std: Std | None = None
    """Standard deviation of the initial embedding; empty means width^-1/2."""
    initial: Literal["xavier", "parts"] = "xavier"
    """Initial values of linear layers: variance 2 / (d_in + d_out), or as `projection` and `feedforward` say."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout of both embeddings and of the output of every sub-layer (P_drop)."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of attention probabilities (in the authors' code, not in the paper)."""
    relu_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout between the layers of an mlp (in the authors' code, not in the paper)."""

    @model_validator(mode="after")
    def _check(self) -> "Translator":
        if self.width % self.heads and None in (self.d_key, self.d_value):
            raise ValueError(f"heads={self.heads} does not divide width={self.width}; give d_key and d_value")
        if isinstance(self.position, Rotary) and int(self.key_width * self.position.fraction) < 2:
            raise ValueError(f"rotary positions need 2 channels per head, but position.fraction of {self.key_width}")
        if self.relu_dropout and self.feedforward.kind != "mlp":
            raise ValueError(f"relu_dropout={self.relu_dropout} needs feedforward.kind=mlp")
        mixer = self.depth.build(self.layers, self.width)
        if type(mixer).add is not Mixer.add:
            raise ValueError(
                f"depth.kind={self.depth.kind} replaces residual additions, of which a block here has three"
            )
        return self

    @property
    def key_width(self) -> int:
        """Channels of a head's keys in force (d_k)."""
        return self.width // self.heads if self.d_key is None else self.d_key

    @property
    def value_width(self) -> int:
        """Channels of a head's values in force (d_v)."""
        return self.width // self.heads if self.d_value is None else self.d_value

    def build(self, seed: int = 0) -> TranslatorModel:
        """Return the model with initial values drawn from the seed."""
        return seeded(lambda: TranslatorModel(self), seed)

    def params(self, *, embedding: bool = True) -> int:
        """Count of parameters, with or without embeddings, learned positions and head."""
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
        """FLOPs of matrix products and attention in the forward pass of one pair of `source` and `target` tokens.

        2 per multiply-add; an array where the lengths are arrays. Attention counts full rectangles, although part of
        the target's is masked.
        """
        query, key, value, output = (self.projection.flops(*size) for size in self._projections)
        feedforward = self.feedforward.flops(self.width, self.width)
        tokens = self.layers * (source + target) * (query + key + value + output + feedforward)
        tokens += self.layers * (target * (query + output) + source * (key + value))
        tokens += target * 2 * self.vocabulary * self.width
        tokens += (source + target) * self.depth.products(self.layers, self.width)
        return tokens + self.attention_flops(source, target)

    def attention_flops(self, source: Lengths, target: Lengths) -> Any:
        """Return the token-token part of `flops`."""
        pairs = source * source + target * target + target * source
        return 2 * self.layers * self.heads * (self.key_width + self.value_width) * pairs

    def activation_elements(self) -> int:
        """Return an estimate of the numbers kept per token of a sentence pair for the backward pass."""
        inner = inner_elements(self.width, self.feedforward)
        return self.layers * (28 * self.width + 2 * inner) + 2 * self.vocabulary

    @property
    def _projections(self) -> tuple[tuple[int, int], ...]:
        keys, values = self.heads * self.key_width, self.heads * self.value_width
        return (self.width, keys), (self.width, keys), (self.width, values), (values, self.width)

    @property
    def embedding_deviation(self) -> float:
        """Standard deviation of the initial embedding in force."""
        return 1 / math.sqrt(self.width) if self.embedding_std is None else self.embedding_std
