"""The module of `Translator`."""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.depth.identity import Mixer, Stream
from formerlab.layers.multihead import Heads, Mask
from formerlab.layers.position import PositionEncoding
from formerlab.models.translator_blocks import DecoderBlock, EncoderBlock, Extend

if TYPE_CHECKING:
    from formerlab.models.translator import Translator

Tokens = Int[Tensor, "batch time"]


class Encoded(NamedTuple):
    """What the decoder reads of source sentences: keys and values of every layer, computed once."""

    layers: list[tuple[Heads, Heads]]
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
        history = self.mixer.encoder.begin(x)
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
        history = self.mixer.decoder.begin(x)
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
