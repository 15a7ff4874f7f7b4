"""The module of sinusoidal positions."""

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.layers.position import PositionEncoding


def sinusoids(context: int, width: int, base: float = 10000.0) -> Float[Tensor, "context width"]:
    """Return PE in float64, on the CPU: sine in even channels, cosine in odd ones (arXiv:1706.03762, section 3.5)."""
    with torch.device("cpu"):
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]


class SinusoidalEncoding(PositionEncoding):
    """The module of `Sinusoidal`."""

    def __init__(self, context: int, width: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("rows", torch.empty(context, width, dtype=torch.float32), persistent=False)
        self.rows: Tensor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the rows."""
        context, width = self.rows.shape
        self.rows.copy_(sinusoids(context, width, self.base))

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Add the rows of the positions."""
        return x + self.rows[start : start + x.shape[1]].to(x.dtype)
