"""One block of a decoder."""

from jaxtyping import Float
from torch import Tensor, nn

from formerlab.layers.attention import Attend, Attention
from formerlab.layers.position import PositionEncoding


class Block(nn.Module):
    """h = x + attention(norm(x)); y = h + feedforward(norm(h)): pre-norm (arXiv:2002.04745, Figure 1b)."""

    def __init__(
        self, attention: Attention, feedforward: nn.Module, norms: tuple[nn.Module, nn.Module], dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm, self.feedforward_norm = norms
        self.attention = attention
        self.feedforward = feedforward
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch time width"], position: PositionEncoding, attend: Attend, layer: int, start: int
    ) -> Float[Tensor, "batch time width"]:
        """Apply the block to tokens at positions start, start + 1, ..."""
        h = x + self.dropout(self.attention(self.attention_norm(x), position, attend, layer, start))
        out: Tensor = h + self.dropout(self.feedforward(self.feedforward_norm(h)))
        return out
