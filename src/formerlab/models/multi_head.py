"""Multi-head attention of the translator: self-attention and cross-attention with padding masks."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.linear import Linear
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import AnyHeads, Mask, Stream


class MultiHead(nn.Module):
    """Concat(softmax(Q_h K_h^T / sqrt(d_k)) V_h) W^O (arXiv:1706.03762, section 3.2.2)."""

    def __init__(self, spec: Any) -> None:
        """Build the projections of a Translator's spec."""
        super().__init__()
        width, keys, values = spec.width, spec.heads * spec.effective_d_key, spec.heads * spec.effective_d_value
        self.heads, self.dropout = spec.heads, spec.attention_dropout

        def build(d_in: int, d_out: int, residual: bool = False) -> nn.Module:
            projection = spec.projection
            if spec.initial == "xavier" and isinstance(projection, Linear):  # other kinds have their own initial values
                initial = {"std": xavier_std(d_in, d_out), "scale_residual": False}
                projection = projection.model_copy(update=initial)
            layer: nn.Module = projection.build(d_in, d_out, layers=spec.layers, residual=residual)
            return layer

        self.query, self.key = build(width, keys), build(width, keys)
        self.value, self.output = build(width, values), build(values, width, residual=True)

    def queries(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> AnyHeads:
        """Return the queries; with `position`, they are rotated at positions start, start + 1, ..."""
        q = self._split(self.query(x))
        return q if position is None else position.rotate(q, start)

    def memory(self, x: Stream, position: PositionEncoding | None = None, start: int = 0) -> tuple[AnyHeads, AnyHeads]:
        """Return keys and values; with `position`, the keys are rotated at positions start, start + 1, ..."""
        k, v = self._split(self.key(x)), self._split(self.value(x))
        return (k if position is None else position.rotate(k, start)), v

    def forward(
        self, q: AnyHeads, memory: tuple[AnyHeads, AnyHeads], mask: Mask | None = None, *, causal: bool = False
    ) -> Stream:
        """Attend from the queries to the keys and values in `memory`, and return the projected output.

        q has shape (rows, heads, time, d_key), keys and values have shape (sentences, heads, keys, d). In beam search,
        all hypotheses of a sentence (adjacent rows with one query each) use the same row of `memory`. One attention
        call computes them, so that the memory is not copied for each hypothesis.
        """
        k, v = memory
        hypotheses = len(q) // len(k)
        if hypotheses > 1:
            q = q.reshape(len(k), hypotheses, *q.shape[1:3], -1).squeeze(3).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=causal
        )
        if hypotheses > 1:
            out = out.transpose(1, 2).reshape(len(k) * hypotheses, self.heads, 1, -1)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def weights(
        self, q: AnyHeads, k: AnyHeads, mask: Bool[Tensor, "_ 1 _ _"] | None = None
    ) -> Float[Tensor, "_ heads _ keys"]:
        """Return the attention probabilities, which `forward` does not store."""
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -math.inf), dim=-1)

    def _split(self, x: Tensor) -> AnyHeads:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


def xavier_std(d_in: int, d_out: int) -> float:
    """Return sqrt(2 / (d_in + d_out)) (Glorot and Bengio 2010, equation 12), as in tensor2tensor."""
    return math.sqrt(2 / (d_in + d_out))
