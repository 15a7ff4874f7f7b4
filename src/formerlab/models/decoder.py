"""The decoder-only language model."""

import functools
import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.attention import Attend, causal_attention
from formerlab.layers.block import Block, activation_elements
from formerlab.layers.depth.identity import Identity
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.initialization import seeded
from formerlab.layers.linear import Linear
from formerlab.layers.linear_cross_entropy import linear_cross_entropy
from formerlab.layers.mlp import Mlp
from formerlab.layers.norm import LayerNorm, Norm, RMSNorm
from formerlab.layers.position import Position, Rotary, check_rotation
from formerlab.layers.projection import FeedForward, Projection
from formerlab.layers.shapes import Start
from formerlab.spec import Layers, Size, Spec, Std, is_none


class Decoder(Spec):
    """Embedding, `layers` pre-norm blocks with a depth mixer, final norm and vocabulary logits.

    The defaults give a Transformer of the size of GPT-2, with rotary positions and linear layers without bias.
    Tokenformer (arXiv:2410.23168) has projection = feedforward = pattention and a non-parametric norm; DenseFormer
    (arXiv:2402.02622) has depth = dwa.
    """

    kind: Literal["decoder"] = "decoder"
    vocabulary: Size = 50304
    """Number of token ids; a plan sets it from the data's tokenizer."""
    layers: Layers = 12
    """Number of blocks."""
    width: Size = 768
    """Channels of the residual stream (d)."""
    heads: Size = 12
    """Number of attention heads; divides `width`."""
    key_heads: Size | None = Field(default=None, exclude_if=is_none)
    """Number of key-value heads (grouped-query attention, arXiv:2305.13245); divides `heads`. The default is
    `heads`."""
    query_key_norm: RMSNorm | None = Field(default=None, exclude_if=is_none)
    """Norm of the queries and keys of each head (arXiv:2302.05442). By default there is no norm."""
    context: Size = 1024
    """Maximum length of a sequence in tokens."""
    position: Position = Rotary()
    """Position encoding."""
    norm: Norm = LayerNorm()
    """Norm before attention and feed-forward."""
    final_norm: Norm = LayerNorm()
    """Norm before the logits."""
    projection: Projection = Linear()
    """Query, key, value and output projections of attention."""
    feedforward: FeedForward = Mlp()
    """Feed-forward network."""
    depth: DepthMixer = Identity()
    """Depth mixer."""
    tied: bool = True
    """Compute the logits with the embedding matrix."""
    embedding_std: Std | None = 0.02
    """Standard deviation of the initial embedding and of an untied head; 0.02 as in GPT-2. null means
    0.02 sqrt(768 / width): the initial logits have the same scale at every width."""
    logit_scale: Literal["none", "inverse_sqrt_width"] = "none"
    """Factor of the logits. The official TPU code of Tokenformer uses inverse_sqrt_width, with embedding_std 1."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability of the embedding and of both residual branches."""

    @model_validator(mode="after")
    def _check(self) -> "Decoder":
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        if self.key_heads is not None and self.heads % self.key_heads:
            raise ValueError(f"key_heads={self.key_heads} does not divide heads={self.heads}")
        check_rotation(self.position, self.width, self.heads)
        return self

    def build(self, seed: int = 0) -> "DecoderModel":
        """Return the model with initial values from the seed."""
        return seeded(lambda: DecoderModel(self), seed)

    @property
    def kv_width(self) -> int:
        """Number of key channels per token, summed over the key-value heads. The values have the same number."""
        return self.width // self.heads * (self.key_heads or self.heads)

    def params(self, *, embedding: bool = True) -> int:
        """Return the number of parameters, with or without embedding, learned positions and head."""
        projections = 2 * sum(self.projection.params(self.width, width) for width in (self.width, self.kv_width))
        if self.query_key_norm is not None:
            projections += 2 * self.query_key_norm.params(self.width // self.heads)
        block = projections + self.feedforward.params(self.width, self.width) + 2 * self.norm.params(self.width)
        count = self.layers * block + self.final_norm.params(self.width)
        count += self.depth.params(self.layers, self.width)
        if embedding:
            count += self.vocabulary * self.width * (1 if self.tied else 2)
            count += self.position.params(self.context, self.width)
        return count

    def flops(self, time: int, *, head: bool = True) -> int:
        """Return the FLOPs of matrix products and attention in the forward pass of one sequence of `time` tokens.

        A multiply-add counts as 2 FLOPs. Attention counts all time x time pairs, including the masked half, as the
        papers and PyTorch's counter do.
        """
        projections = 2 * sum(self.projection.flops(self.width, width) for width in (self.width, self.kv_width))
        block = projections + self.feedforward.flops(self.width, self.width)
        flops_per_token = self.layers * block + (2 * self.vocabulary * self.width if head else 0)
        flops_per_token += self.depth.matmul_flops(self.layers, self.width)
        return time * flops_per_token + self.attention_flops(time)

    def attention_flops(self, time: int) -> int:
        """Return the FLOPs of attention between tokens, 4 layers width time^2; `flops` includes them."""
        return 4 * self.layers * self.width * time * time

    def activation_elements(self) -> int:
        """Estimate the elements that all blocks save per token for the backward pass."""
        return self.layers * activation_elements(self.width, self.projection, self.feedforward, self.depth)

    def kv_bytes(self, time: int) -> int:
        """Return the bytes of the float32 keys and values of one sequence of `time` tokens."""
        return 4 * 2 * self.layers * self.kv_width * time


def _dropout(probability: float) -> nn.Module:
    return nn.Dropout(probability) if probability else nn.Identity()


class DecoderModel(nn.Module):
    """The module of `Decoder`."""

    def __init__(self, spec: Decoder) -> None:
        super().__init__()
        self.spec = spec
        width, layers = spec.width, spec.layers
        self.embedding = nn.Parameter(torch.empty(spec.vocabulary, width))
        self.head = nn.Parameter(torch.empty(spec.vocabulary, width)) if not spec.tied else None
        self.position = spec.position.build(spec.context, width, width // spec.heads)
        self.dropout = _dropout(spec.dropout)
        self.blocks = nn.ModuleList(Block(spec, _dropout(spec.dropout)) for _ in range(layers))
        self.mixer = spec.depth.build(layers, width)
        self.final_norm = spec.final_norm.build(width)
        self.logit_factor = 1 / math.sqrt(width) if spec.logit_scale == "inverse_sqrt_width" else 1.0
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample the embedding and an untied head."""
        std = self.spec.embedding_std or 0.02 * math.sqrt(768 / self.spec.width)
        for weight in (self.embedding, self.head):
            if weight is not None:
                nn.init.normal_(weight, 0.0, std)

    def forward(
        self,
        tokens: Int[Tensor, "batch time"],
        *,
        attend: Attend = causal_attention,
        start: Start = 0,
        last: int | None = None,
        targets: Int[Tensor, "batch queries"] | None = None,
    ) -> Float[Tensor, "batch queries vocabulary"] | Float[Tensor, ""]:
        """Return next-token logits, or the loss; `tokens` have positions start, start + 1, ...

        With `last`, only the logits of the last `last` tokens are computed. `targets` contains the next token of each
        returned position. If it is given, the result is the mean negative log-likelihood in nats, in at least float32.
        The loss is computed without storing all logits, except under torch.compile and torch.func. Raises ValueError if
        a position exceeds the context, unless `start` is a tensor.
        """
        if isinstance(start, int) and start + tokens.shape[1] > self.spec.context:
            raise ValueError(f"{start + tokens.shape[1]} tokens exceed the model's context of {self.spec.context}")
        x = self.dropout(self.position.embed(F.embedding(tokens, self.embedding), start))
        x, history = self.mixer.begin(x)
        add = functools.partial(self.mixer.add, history=history)
        for index, block in enumerate(self.blocks):
            x = self.mixer.mix(index + 1, block(x, self.position, attend, index, start, add), history)
        x = self.final_norm(x if last is None else x[:, -last:])
        if self.logit_factor != 1:
            x = x * self.logit_factor
        head = self.embedding if self.head is None else self.head
        if targets is not None:
            return linear_cross_entropy(x.flatten(0, 1), head, targets.flatten())
        return F.linear(x, head)
