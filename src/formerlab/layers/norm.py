"""Normalisation over the channels of each token."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.layers.layer_spec import LayerSpec
from formerlab.spec import Epsilon


class LayerNorm(LayerSpec):
    """y = (x - mean) / sqrt(variance + eps) * gain + bias (arXiv:1607.06450, eq. 4).

    With gain = bias = False it is the non-parametric norm of Tokenformer (arXiv:2410.23168, section 4.4).
    """

    kind: Literal["layernorm"] = "layernorm"
    gain: bool = True
    """Learn a factor per channel."""
    bias: bool = True
    """Learn an offset per channel."""
    eps: Epsilon = 1e-5
    """Added to the variance."""

    def build(self, width: int) -> "NormLayer":
        return NormLayer(width, self.eps, gain=self.gain, bias=self.bias, centred=True)


class RMSNorm(LayerSpec):
    """y = x / sqrt(mean(x^2) + eps) * gain (arXiv:1910.07467, eq. 4)."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    gain: bool = True
    """Learn a factor per channel."""
    eps: Epsilon = 1e-5
    """Added to the mean square."""

    def build(self, width: int) -> "NormLayer":
        return NormLayer(width, self.eps, gain=self.gain, bias=False, centred=False)


Norm = Annotated[LayerNorm | RMSNorm, Field(discriminator="kind")]


class NormLayer(nn.Module):
    """The module of LayerNorm and RMSNorm."""

    def __init__(self, width: int, eps: float, *, gain: bool, bias: bool, centred: bool) -> None:
        """Build the norm; with `centred`, it subtracts the mean."""
        super().__init__()
        self.width, self.eps, self.centred = width, eps, centred
        self.gain = nn.Parameter(torch.empty(width)) if gain else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.gain is not None:
            nn.init.ones_(self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        kind = "LayerNorm" if self.centred else "RMSNorm"
        return f"{kind}, {self.width}, eps={self.eps}, gain={self.gain is not None}, bias={self.bias is not None}"

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        if self.centred:
            return F.layer_norm(x, (self.width,), self.gain, self.bias, self.eps)
        return F.rms_norm(x, (self.width,), self.gain, self.eps)
