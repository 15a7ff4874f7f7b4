"""Multi-head attention between tokens."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.position import PositionEncoding
from formerlab.layers.projection import Projection

Heads = Float[Tensor, "batch heads time d_head"]
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
    del layer
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Concatenated heads of softmax(q k^T / sqrt(d_head)) v, projected (arXiv:1706.03762, section 3.2.2).

    The four projections are of one kind.
    """

    def __init__(self, width: int, heads: int, projection: Projection, *, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = projection.build(width, width, layers=layers)
        self.key = projection.build(width, width, layers=layers)
        self.value = projection.build(width, width, layers=layers)
        self.output = projection.build(width, width, layers=layers, residual=True)

    def forward(
        self, x: Float[Tensor, "batch time width"], position: PositionEncoding, attend: Attend, layer: int, start: int
    ) -> Float[Tensor, "batch time width"]:
        """Attend from tokens at positions start, start + 1, ..."""
        q, k, v = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        out = attend(layer, position.rotate(q, start), position.rotate(k, start), v)
        mixed: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Float[Tensor, "batch time width"]) -> Heads:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
