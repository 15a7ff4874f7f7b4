"""Multi-head self-attention with an attention function that the caller passes."""

import functools
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Start, Stream


@runtime_checkable
class Attend(Protocol):
    """The attention function that a model's forward takes: causal attention, a KV cache, or a pruning simulation."""

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return softmax(q k^T / sqrt(d_head)) v over the keys that each query may see, in layer `layer` (from 0)."""
        ...


def causal_attention(layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
    """softmax(q k^T / sqrt(d_head) + causal mask) v (arXiv:1706.03762, eq. 1)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Concatenated heads of softmax(q k^T / sqrt(d_head)) v, projected (arXiv:1706.03762, section 3.2.2).

    `spec.projection` builds all four projections. Grouped-query attention (fewer key-value heads than heads) follows
    arXiv:2305.13245, section 2.2. With `query_key_norm`, queries and keys are normalised per head before the position
    encoding (arXiv:2302.05442, section 2).
    """

    def __init__(self, spec: Any) -> None:
        """Build the projections of one block; `spec` is the spec of a Decoder or VisionTransformer."""
        super().__init__()
        width, self.d_head = spec.width, spec.width // spec.heads
        kv_width, norm = getattr(spec, "kv_width", width), getattr(spec, "query_key_norm", None)
        build = functools.partial(spec.projection.build, width, layers=spec.layers)
        self.query, self.key, self.value = build(width), build(kv_width), build(kv_width)
        self.output = build(width, residual=True)
        self.query_norm, self.key_norm = (norm.build(self.d_head) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Stream, position: PositionEncoding, attend: Attend, layer: int, start: Start) -> Stream:
        """Return the attention output of tokens at positions start, start + 1, ..."""
        q, k, v = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        q, k = self.query_norm(q), self.key_norm(k)
        out = attend(layer, position.rotate(q, start), position.rotate(k, start), v)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Float[Tensor, "batch time channels"]) -> Heads:
        return x.reshape(*x.shape[:2], -1, self.d_head).transpose(1, 2)
