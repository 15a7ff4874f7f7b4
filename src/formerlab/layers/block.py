"""One block of a decoder."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.attention import Attend, Attention
from formerlab.layers.depth.identity import Stream
from formerlab.layers.position import PositionEncoding

Add = Callable[[int, Stream, Stream], Stream]
"""What stands for the residual addition x + update: (sub-layer, x, update) -> stream; see `Mixer.add`."""


def residual(site: int, x: Stream, update: Stream) -> Stream:
    """Return x + update, the plain residual connection (arXiv:1512.03385, eq. 1)."""
    return x + update


class Block(nn.Module):
    """h = x + attention(norm(x)); y = h + feedforward(norm(h)): pre-norm (arXiv:2002.04745, Figure 1b).

    Both additions are an argument of the call, since a depth mixer may put something else in their place.
    """

    def __init__(
        self, attention: Attention, feedforward: nn.Module, norms: tuple[nn.Module, nn.Module], dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm, self.feedforward_norm = norms
        self.attention = attention
        self.feedforward = feedforward
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        position: PositionEncoding,
        attend: Attend,
        layer: int,
        start: int,
        add: Add = residual,
    ) -> Float[Tensor, "batch time width"]:
        """Apply the block to tokens at positions start, start + 1, ...; a depth mixer may stand for the additions."""
        update = self.dropout(self.attention(self.attention_norm(x), position, attend, layer, start))
        h = add(2 * layer + 1, x, update)
        return add(2 * layer + 2, h, self.dropout(self.feedforward(self.feedforward_norm(h))))
