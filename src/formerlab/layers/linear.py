"""The linear projection."""

import math
from typing import Literal

from torch import nn

from formerlab.layers.layer_spec import LayerSpec
from formerlab.spec import Std


class Linear(LayerSpec):
    """y = x W^T (+ b) (arXiv:1706.03762, section 3.2.2).

    Initial values are normal with standard deviation `std`, divided by sqrt(2 layers) if the projection writes to the
    residual stream (as in GPT-2 and in DenseFormer's official code, arXiv:2402.02622).
    """

    kind: Literal["linear"] = "linear"
    bias: bool = False
    """Add a learned bias."""
    std: Std = 0.02
    """Standard deviation of the initial weights."""
    scale_residual: bool = True
    """Divide `std` by sqrt(2 layers) in the projections that write to the residual stream."""

    def build(self, d_in: int, d_out: int, *, layers: int = 1, residual: bool = False) -> "LinearProjection":
        """Return the module; `layers` (depth of the model) and `residual` only change the initial values."""
        std = self.std / math.sqrt(2 * layers) if residual and self.scale_residual else self.std
        return LinearProjection(d_in, d_out, bias=self.bias, std=std)

    def flops(self, d_in: int, d_out: int) -> int:
        """Return the FLOPs of the matrix products of one token's forward pass (2 per multiply-add)."""
        return 2 * d_in * d_out


class LinearProjection(nn.Linear):
    """`nn.Linear` with the initial values of its spec."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool, std: float) -> None:
        self.std = std
        super().__init__(d_in, d_out, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, 0.0, self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
