"""The feed-forward network with one hidden layer."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.layer_spec import LayerSpec
from formerlab.layers.linear import Linear
from formerlab.spec import Size, Std


class Mlp(LayerSpec):
    """y = f(x W1^T) W2^T with f = gelu or relu (arXiv:1706.03762, eq. 2), or (silu(x W1^T) * x W3^T) W2^T for swiglu
    (arXiv:2002.05202, eq. 6).
    """

    kind: Literal["mlp"] = "mlp"
    hidden: Size | None = None
    """Hidden width; default 4 d_in, or 8/3 d_in rounded up to a multiple of 8 for swiglu (about equal parameters)."""
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    """Non-linearity; gelu is the exact (erf) form."""
    bias: bool = False
    """Add learned biases."""
    std: Std = 0.02
    """Standard deviation of the initial weights."""
    scale_residual: bool = Field(default=True, exclude_if=bool)
    """Divide `std` of the second layer by sqrt(2 layers) if the MLP writes to the residual stream."""

    def width(self, d_in: int) -> int:
        """Return `hidden` or its default."""
        if self.hidden is not None:
            return self.hidden
        return math.ceil(d_in / 3) * 8 if self.activation == "swiglu" else 4 * d_in

    def build(self, d_in: int, d_out: int, *, layers: int = 1, residual: bool = False) -> "MlpLayer":
        return MlpLayer(d_in, d_out, self, layers=layers, residual=residual)

    def flops(self, d_in: int, d_out: int) -> int:
        """Return the FLOPs of the matrix products of one token's forward pass (2 per multiply-add)."""
        gates = 2 if self.activation == "swiglu" else 1
        return 2 * self.width(d_in) * (gates * d_in + d_out)


class MlpLayer(nn.Module):
    """The module of `Mlp`."""

    def __init__(self, d_in: int, d_out: int, spec: Mlp, *, layers: int, residual: bool) -> None:
        super().__init__()
        hidden, linear = spec.width(d_in), Linear(bias=spec.bias, std=spec.std, scale_residual=spec.scale_residual)
        self.activation = spec.activation
        # swiglu: `inner` is W1 (gate_proj of LLaMA, with silu), and `gate` is W3 (up_proj)
        self.inner = linear.build(d_in, hidden)
        self.gate = linear.build(d_in, hidden) if spec.activation == "swiglu" else None
        self.outer = linear.build(hidden, d_out, layers=layers, residual=residual)
        self.dropout: nn.Module = nn.Identity()  # for the hidden units; the translator replaces it

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        inner: Tensor = self.inner(x)
        if self.gate is not None:
            hidden = F.silu(inner) * self.gate(x)
        else:
            hidden = F.gelu(inner) if self.activation == "gelu" else torch.relu(inner)
        out: Tensor = self.outer(self.dropout(hidden))
        return out
