"""Position: how a model knows the order of its tokens."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from formerlab.layers.sinusoidal import Sinusoidal
from formerlab.spec import Spec


class NoPosition(Spec):
    """No position information but the causal mask (the official TPU code of Tokenformer, arXiv:2410.23168)."""

    kind: Literal["none"] = "none"

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        """Return the module."""
        del context, width, d_head
        return PositionEncoding()

    def params(self, context: int, width: int) -> int:
        """Count of parameters."""
        del context, width
        return 0


class Learned(Spec):
    """x_t + P_t with a learned row P_t per position (arXiv:1706.03762, section 3.5 and Table 3 row E)."""

    kind: Literal["learned"] = "learned"
    std: PositiveFloat = 0.02
    """Standard deviation of the initial rows."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        """Return the module for at most `context` positions."""
        del d_head
        return LearnedEncoding(context, width, self.std)

    def params(self, context: int, width: int) -> int:
        """Count of parameters."""
        return context * width


class Rotary(Spec):
    """Queries and keys rotated by angles t base^(-2i/r) in r of their d_head channels (arXiv:2104.09864, eq. 34)."""

    kind: Literal["rotary"] = "rotary"
    fraction: PositiveFloat = Field(default=1.0, le=1.0)
    """Share of each head's channels that is rotated (0.25 in the official GPU code of Tokenformer)."""
    base: PositiveFloat = 10000.0
    """Base of the wavelengths."""
    interleaved: bool = False
    """Rotate channels (2i, 2i+1) (DenseFormer's code) and not (i, i + r/2) (GPT-NeoX, LLaMA)."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        """Return the module for at most `context` positions."""
        del width
        return RotaryEncoding(context, d_head, self)

    def params(self, context: int, width: int) -> int:
        """Count of parameters."""
        del context, width
        return 0


Position = Annotated[NoPosition | Learned | Rotary | Sinusoidal, Field(discriminator="kind")]


class PositionEncoding(nn.Module):
    """Both places where positions can enter, each the identity: the module of `NoPosition`."""

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Mark embedded tokens that stand at positions start, start + 1, ..."""
        del start
        return x

    def rotate(
        self, x: Float[Tensor, "batch heads time d_head"], start: int
    ) -> Float[Tensor, "batch heads time d_head"]:
        """Mark queries or keys that stand at positions start, start + 1, ..."""
        del start
        return x


class LearnedEncoding(PositionEncoding):
    """The module of `Learned`."""

    def __init__(self, context: int, width: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.rows = nn.Parameter(torch.zeros(context, width))

    def reset(self, generator: torch.Generator) -> None:
        """Draw the rows."""
        self.rows.normal_(0.0, self.std, generator=generator)

    def embed(self, x: Float[Tensor, "batch time width"], start: int) -> Float[Tensor, "batch time width"]:
        """Add the rows of the positions."""
        return x + self.rows[start : start + x.shape[1]]


class RotaryEncoding(PositionEncoding):
    """The module of `Rotary`."""

    def __init__(self, context: int, d_head: int, spec: Rotary) -> None:
        super().__init__()
        self.rotated = int(d_head * spec.fraction) // 2 * 2
        self.interleaved = spec.interleaved
        frequencies = spec.base ** (-torch.arange(0, self.rotated, 2, dtype=torch.float64) / max(self.rotated, 1))
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)
        self.cosine: Tensor
        self.sine: Tensor

    def rotate(
        self, x: Float[Tensor, "batch heads time d_head"], start: int
    ) -> Float[Tensor, "batch heads time d_head"]:
        """Rotate the first channels of every head; the rest passes unchanged."""
        cosine = self.cosine[start : start + x.shape[2]].to(x.dtype)
        sine = self.sine[start : start + x.shape[2]].to(x.dtype)
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
