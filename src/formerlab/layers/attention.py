"""Multi-head attention within a sequence, and, as the paper of 2017 has it, with masks and across sequences."""

import functools
import math
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.linear import Linear
from formerlab.layers.position import Heads as Heads
from formerlab.layers.position import PositionEncoding, Stream

KeyHeads = Float[Tensor, "batch key_heads keys d_head"]


@runtime_checkable
class Attend(Protocol):
    """How queries meet keys and values in layer `layer`: plain causal attention, a cache, a pruning simulation.

    It is an argument of a model's forward, so one model serves training, cached decoding and pruning unchanged.
    """

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return softmax(q k^T / sqrt(d_head)) v over the keys that each query may see."""
        ...


def causal_attention(layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
    """softmax(q k^T / sqrt(d_head) + causal mask) v (arXiv:1706.03762, eq. 1)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Concatenated heads of softmax(q k^T / sqrt(d_head)) v, projected (arXiv:1706.03762, section 3.2.2).

    The four projections are of one kind. With fewer key heads than heads each serves as many neighbouring queries
    (arXiv:2305.13245, section 2.2); with `query_key_norm` queries and keys are normalised head by head, before their
    positions are marked (arXiv:2302.05442, section 2).
    """

    def __init__(self, spec: Any) -> None:
        """`spec` is that of a model of whole blocks."""
        super().__init__()
        width, self.d_head = spec.width, spec.width // spec.heads
        grouped, norm = getattr(spec, "key_width", width), getattr(spec, "query_key_norm", None)
        build = functools.partial(spec.projection.build, width, layers=spec.layers)
        self.query, self.key, self.value = build(width), build(grouped), build(grouped)
        self.output = build(width, residual=True)
        self.query_norm, self.key_norm = (norm.build(self.d_head) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Stream, position: PositionEncoding, attend: Attend, layer: int, start: int) -> Stream:
        """Attend from tokens at positions start, start + 1, ..."""
        q, k, v = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        q, k = self.query_norm(q), self.key_norm(k)
        out = attend(layer, position.rotate(q, start), position.rotate(k, start), v)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Float[Tensor, "batch time channels"]) -> Heads:
        return x.reshape(*x.shape[:2], -1, self.d_head).transpose(1, 2)


AnyHeads = Float[Tensor, "_ heads _ _"]
"""Rows, heads, tokens, channels of a head: of queries, keys or values, which differ in all but the heads."""
Mask = Bool[Tensor, "_ 1 1 _"]
"""Which keys of a row are real, not padding."""


class MultiHead(nn.Module):
    """Concat(softmax(Q_h K_h^T / sqrt(d_k)) V_h) W^O (arXiv:1706.03762, section 3.2.2)."""

    def __init__(self, spec: Any) -> None:
        """`spec` is that of a translator."""
        super().__init__()
        width, keys, values = spec.width, spec.heads * spec.key_width, spec.heads * spec.value_width
        self.heads, self.dropout = spec.heads, spec.attention_dropout

        def built(d_in: int, d_out: int, residual: bool = False) -> nn.Module:
            projection = spec.projection
            if spec.initial == "xavier" and isinstance(projection, Linear):  # any other projection as it is
                own = {"std": xavier_std(d_in, d_out), "scale_residual": False}
                projection = projection.model_copy(update=own)
            layer: nn.Module = projection.build(d_in, d_out, layers=spec.layers, residual=residual)
            return layer

        self.query, self.key = built(width, keys), built(width, keys)
        self.value, self.output = built(width, values), built(values, width, residual=True)

    def queries(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> AnyHeads:
        """Return the queries of tokens at positions start, start + 1, ...; without positions in cross-attention."""
        q = self._split(self.query(x))
        return q if position is None else position.rotate(q, start)

    def memory(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> tuple[AnyHeads, AnyHeads]:
        """Return keys and values of tokens at positions start, start + 1, ..."""
        k, v = self._split(self.key(x)), self._split(self.value(x))
        return (k if position is None else position.rotate(k, start)), v

    def forward(
        self, q: AnyHeads, memory: tuple[AnyHeads, AnyHeads], mask: Mask | None = None, *, causal: bool = False
    ) -> Stream:
        """Return what the queries read of the memory.

        Where there are several rows of queries for each row of the memory (hypotheses of one sentence, one query each),
        they are read side by side, so that the memory is not copied.
        """
        k, v = memory
        group = len(q) // len(k)
        if group > 1:
            q = q.reshape(len(k), group, *q.shape[1:3], -1).squeeze(3).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=causal
        )
        if group > 1:
            out = out.transpose(1, 2).reshape(len(k) * group, self.heads, 1, -1)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def weights(
        self, q: AnyHeads, k: AnyHeads, mask: Bool[Tensor, "_ 1 _ _"] | None = None
    ) -> Float[Tensor, "_ heads _ keys"]:
        """Return the attention probabilities themselves, for looking at them."""
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -math.inf), dim=-1)

    def _split(self, x: Tensor) -> AnyHeads:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


def xavier_std(d_in: int, d_out: int) -> float:
    """Return sqrt(2 / (d_in + d_out)) (Glorot and Bengio 2010, equation 12), as drawn in the original code."""
    return math.sqrt(2 / (d_in + d_out))
