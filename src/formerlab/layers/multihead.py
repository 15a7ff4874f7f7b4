"""Multi-head attention whose keys and values may come from another sequence.

`attention.py` is the decoder-only case; here keys and values have widths of their own (Table 3, rows A and B of
arXiv:1706.03762), and queries may meet the memory of an encoder.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.linear import Linear
from formerlab.layers.position import PositionEncoding
from formerlab.layers.projection import Projection

Stream = Float[Tensor, "batch time width"]
Heads = Float[Tensor, "_ heads _ _"]
"""Rows, heads, tokens, channels of a head: of queries, keys or values, which differ in all but the heads."""
Mask = Bool[Tensor, "_ 1 1 _"]
"""Which keys of a row are no padding."""


class MultiHead(nn.Module):
    """Concat(softmax(Q_h K_h^T / sqrt(d_k)) V_h) W^O (arXiv:1706.03762, section 3.2.2)."""

    def __init__(
        self, width: int, heads: int, d_key: int, d_value: int, projection: Projection, dropout: float, *, xavier: bool
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout

        def built(d_in: int, d_out: int, *, residual: bool = False) -> nn.Module:
            spec = as_xavier(projection, d_in, d_out) if xavier else projection
            return spec.build(d_in, d_out, residual=residual)

        self.query, self.key = (built(width, heads * d_key) for _ in range(2))
        self.value = built(width, heads * d_value)
        self.output = built(heads * d_value, width, residual=True)

    def queries(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> Heads:
        """Return the queries of tokens at positions start, start + 1, ...; without positions in cross-attention."""
        q = self._split(self.query(x))
        return q if position is None else position.rotate(q, start)

    def memory(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> tuple[Heads, Heads]:
        """Return keys and values of tokens at positions start, start + 1, ..."""
        k, v = self._split(self.key(x)), self._split(self.value(x))
        return (k if position is None else position.rotate(k, start)), v

    def forward(
        self, q: Heads, memory: tuple[Heads, Heads], mask: Mask | None = None, *, causal: bool = False
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
        self, q: Heads, k: Heads, mask: Bool[Tensor, "_ 1 _ _"] | None = None
    ) -> Float[Tensor, "_ heads _ keys"]:
        """Return the attention probabilities themselves, for looking at them."""
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -math.inf), dim=-1)

    def _split(self, x: Tensor) -> Heads:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


def as_xavier(projection: Projection, d_in: int, d_out: int) -> Projection:
    """Return a linear projection whose initial values have Glorot's variance, any other projection unchanged."""
    if not isinstance(projection, Linear):
        return projection
    return projection.model_copy(update={"std": xavier_std(d_in, d_out), "scale_residual": False})


def xavier_std(d_in: int, d_out: int) -> float:
    """Return sqrt(2 / (d_in + d_out)) (Glorot and Bengio 2010, equation 12), as drawn in the original code."""
    return math.sqrt(2 / (d_in + d_out))
