"""Multi-head attention within a sequence, and, as the paper of 2017 has it, with masks and across sequences."""

import functools
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Stream


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
        grouped, norm = getattr(spec, "kv_width", width), getattr(spec, "query_key_norm", None)
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
