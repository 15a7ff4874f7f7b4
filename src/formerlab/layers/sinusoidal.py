"""Sinusoidal positions of the original Transformer."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from formerlab.spec import Spec

if TYPE_CHECKING:
    from formerlab.layers.position import PositionEncoding


class Sinusoidal(Spec):
    """x_t + PE_t with PE(t, 2i) = sin(t base^(-2i/d)) and PE(t, 2i+1) = cos of the same (arXiv:1706.03762, 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10000.0, ge=1.0, le=1e10)
    """Base of the wavelengths, which run from 2 pi to 2 pi base."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        """Return the module for at most `context` positions."""
        from formerlab.layers.sinusoidal_encoding import SinusoidalEncoding  # it builds on the module of this union

        del d_head
        return SinusoidalEncoding(context, width, self.base)

    def params(self, context: int, width: int) -> int:
        """Count of parameters."""
        del context, width
        return 0
