"""Position encodings."""

from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from formerlab.kernels import rotary_cpu
from formerlab.layers.autocast import func_transform_active
from formerlab.layers.shapes import Heads, Start, Stream
from formerlab.spec import Spec, Std


class WithoutParameters(Spec):
    """Base of the position encodings without learned parameters."""

    def params(self, context: int, width: int) -> int:
        return 0


class NoPosition(WithoutParameters):
    """No position encoding: only the causal mask gives order (official TPU code of Tokenformer, arXiv:2410.23168)."""

    kind: Literal["none"] = "none"

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        return PositionEncoding()


class Learned(Spec):
    """x_t + P_t with a learned position embedding P_t (arXiv:1706.03762, section 3.5 and Table 3 row E)."""

    kind: Literal["learned"] = "learned"
    std: Std = 0.02
    """Standard deviation of the initial position embeddings."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        """Return the module for at most `context` positions."""
        return LearnedRows(context, width, self.std)

    def params(self, context: int, width: int) -> int:
        return context * width


class Rotary(WithoutParameters):
    """Queries and keys rotated by angles t base^(-2i/r) in r of their d_head channels (arXiv:2104.09864, eq. 34)."""

    kind: Literal["rotary"] = "rotary"
    fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    """Fraction of each head's channels that are rotated (0.25 in the official GPU code of Tokenformer)."""
    base: float = Field(default=10000.0, ge=1.0, le=1e10)
    """Base of the wavelengths."""
    interleaved: bool = False
    """Rotate channel pairs (2i, 2i+1), as DenseFormer's code does, instead of (i, i + r/2) (GPT-NeoX, LLaMA)."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        return RotaryEncoding(context, d_head, self)


class Sinusoidal(WithoutParameters):
    """x_t + PE_t, PE(t, 2i) = sin(t base^(-2i/d)), PE(t, 2i+1) = cos(t base^(-2i/d)) (arXiv:1706.03762, 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: float = Field(default=10000.0, ge=1.0, le=1e10)
    """Base of the wavelengths, which run from 2 pi to 2 pi base."""

    def build(self, context: int, width: int, d_head: int) -> "PositionEncoding":
        return SinusoidalRows(context, width, self.base)


def check_rotation(position: Spec, width: int, heads: int) -> None:
    """Raise ValueError if rotary positions rotate fewer than 2 channels per head."""
    if isinstance(position, Rotary) and int(width // heads * position.fraction) < 2:
        sizes = f"width={width}, heads={heads}, position.fraction={position.fraction}"
        raise ValueError(f"rotary positions need at least 2 rotated channels per head: {sizes}")


Position = Annotated[NoPosition | Learned | Rotary | Sinusoidal, Field(discriminator="kind")]


class PositionEncoding(nn.Module):
    """The module of `NoPosition` and the base of the others: `embed` and `rotate` return their input."""

    def reset_parameters(self) -> None:
        """Sample position embeddings or compute tables; the base class does nothing."""

    def embed(self, x: Stream, start: Start) -> Stream:
        """Add the embeddings of positions start, start + 1, ... to the token embeddings."""
        return x

    def rotate(self, x: Heads, start: Start) -> Heads:
        """Rotate queries or keys at positions start, start + 1, ..."""
        return x


def sinusoids(context: int, width: int, base: float = 10000.0) -> Float[Tensor, "context width"]:
    """Return PE in float64 on the CPU: sine in even channels, cosine in odd channels (arXiv:1706.03762, 3.5)."""
    with torch.device("cpu"):
        frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]


def select_rows(table: Float[Tensor, "context channels"], start: Start, count: int) -> Float[Tensor, "count channels"]:
    """Return `count` rows from row `start`; a tensor `start` is not synchronised with the host."""
    if isinstance(start, int):
        return table[start : start + count]
    return table.index_select(0, start + torch.arange(count, device=table.device))


class AddedRows(PositionEncoding):
    """Base of the modules that add row t of `rows` (context, width) to the token at position t."""

    rows: Tensor

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.rows.shape)

    def embed(self, x: Stream, start: Start) -> Stream:
        return x + select_rows(self.rows, start, x.shape[1]).to(x.dtype)


class LearnedRows(AddedRows):
    """The module of `Learned`."""

    def __init__(self, context: int, width: int, std: float) -> None:
        super().__init__()
        self.std, self.rows = std, nn.Parameter(torch.empty(context, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.rows, 0.0, self.std)


class SinusoidalRows(AddedRows):
    """The module of `Sinusoidal`."""

    def __init__(self, context: int, width: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("rows", torch.empty(context, width, dtype=torch.float32), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        context, width = self.rows.shape
        self.rows.copy_(sinusoids(context, width, self.base))


class RotaryEncoding(PositionEncoding):
    """The module of `Rotary`."""

    def __init__(self, context: int, d_head: int, spec: Rotary) -> None:
        super().__init__()
        self.rotated = int(d_head * spec.fraction) // 2 * 2
        self.interleaved = spec.interleaved
        self.base = spec.base
        self.register_buffer("cosine", torch.empty(context, d_head, dtype=torch.float32), persistent=False)
        self.register_buffer("sine", torch.empty(context, self.rotated // 2, dtype=torch.float32), persistent=False)
        self.cosine: Tensor
        """(context, d_head): cosine of the angle of every channel; 1 for channels that are not rotated."""
        self.sine: Tensor
        """(context, rotated / 2): sine of the angle of every channel pair."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the tables on the CPU, so that they are equal on all devices."""
        with torch.device("cpu"):
            frequencies = self.base ** (-torch.arange(0, self.rotated, 2, dtype=torch.float64) / max(self.rotated, 1))
            angles = torch.outer(torch.arange(len(self.cosine), dtype=torch.float64), frequencies)
        self.sine.copy_(angles.sin())
        self.cosine.fill_(1.0)
        for channels in self._pairs(self.cosine):
            channels.copy_(angles.cos())

    def extra_repr(self) -> str:
        context, channels = self.cosine.shape
        return f"{context}, {self.rotated} of {channels} channels, base={self.base:g}, interleaved={self.interleaved}"

    def rotate(self, x: Heads, start: Start) -> Heads:
        """Rotate the first `rotated` channels of every head; the other channels stay unchanged.

        Raises ValueError for positions beyond the context if `start` is a number.
        """
        if isinstance(start, int) and (end := start + x.shape[2]) > len(self.cosine):
            raise ValueError(f"{end} positions exceed the context of {len(self.cosine)}; build with a larger context")
        cosine, sine = (select_rows(table, start, x.shape[2]) for table in (self.cosine, self.sine))
        if torch.compiler.is_compiling() or func_transform_active():
            return self.rotate_pairs(x, cosine, sine)
        rotated: Tensor = _Rotation.apply(x, cosine, sine, self, False)  # type: ignore[no-untyped-call]
        return rotated

    def rotate_pairs(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return a copy of x with (a cos - b sin, a sin + b cos) for every pair of channels (a, b)."""
        out = x * cosine.to(x.dtype)
        (a, b), (first, second) = self._pairs(x), self._pairs(out)
        first.addcmul_(b, sine.to(x.dtype), value=-1)
        second.addcmul_(a, sine.to(x.dtype))
        return out

    def _pairs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first and the second channels of all pairs as views."""
        if self.interleaved:
            return x[..., 0 : self.rotated : 2], x[..., 1 : self.rotated : 2]
        return x[..., : self.rotated // 2], x[..., self.rotated // 2 : self.rotated]


class _Rotation(torch.autograd.Function):
    """A rotation; its gradient is the inverse rotation, so only the tables are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, encoding: RotaryEncoding, inverse: bool) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.encoding, ctx.inverse = encoding, inverse
        if rotary_cpu.fits(x, cosine):
            return rotary_cpu.rotate(x, cosine, sine, interleaved=encoding.interleaved, inverse=inverse)
        return encoding.rotate_pairs(x, cosine, -sine if inverse else sine)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        grad_x: Tensor = _Rotation.apply(grad, *ctx.saved_tensors, ctx.encoding, not ctx.inverse)  # type: ignore[no-untyped-call]
        return grad_x, None, None, None, None
