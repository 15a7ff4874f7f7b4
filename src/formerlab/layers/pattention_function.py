"""Pattention with the score l2_gelu, written for memory: it keeps half of what a plain MLP of the same shape keeps.

Between the passes lie the normalised products Z = tau A / ||A||, A = x K^T, and one factor tau / ||A|| per row; the
scores gelu(Z) are computed again. The formula written out is `score.l2_gelu` between two matrix products; the backward
pass is its closed form. On a CPU a C++ kernel fuses norm and GeLU where a compiler is installed; on a GPU torch.compile
fuses them. The choice never depends on timings, so an interrupted run goes on with the same code.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formerlab.kernels import norm_gelu_cpu
from formerlab.layers.score import SMALLEST_NORM, RowFactor, Scores, row_factor

X = Float[Tensor, "*batch d_in"]
Keys = Float[Tensor, "tokens d_in"]
Values = Float[Tensor, "tokens d_out"]
Y = Float[Tensor, "*batch d_out"]

ALIGNED = 64
"""Tokens are padded to a multiple of this for tensor cores: else rows of scores begin at odd addresses, and products
with them take a slower path."""


def lean_pattention(x: X, keys: Keys, values: Values, tau: float) -> Y:
    """Return gelu(tau A / ||A||_2) V with A = x K^T (arXiv:2410.23168, eq. 4; its gradient: Appendix A).

    Under autocast the operands are cast as those of a matrix product are. Second derivatives are not available.
    """
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x, keys, values = (operand.to(torch.get_autocast_dtype(device)) for operand in (x, keys, values))
    if _uses_tensor_cores(x):  # zero keys have zero products: they change neither the norm nor the sum
        keys, values = (F.pad(tokens, (0, 0, 0, -len(tokens) % ALIGNED)) for tokens in (keys, values))
    y: Tensor = _Pattention.apply(x.reshape(-1, x.shape[-1]), keys, values, tau)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], values.shape[1])


def _uses_tensor_cores(x: Tensor) -> bool:
    return x.device.type != "cpu" and x.dtype in (torch.bfloat16, torch.float16)


class _Pattention(torch.autograd.Function):
    """The two passes; all that is kept goes through save_for_backward, so activation checkpoints and hooks see it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, values: Tensor, tau: float) -> Tensor:
        z, factor, scores = _normalise_and_activate(x @ keys.T, tau)
        ctx.save_for_backward(x, keys, values, z, factor)
        ctx.tau = tau
        return scores @ values

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, keys, values, z, factor = ctx.saved_tensors
        # The factor of dA multiplies the incoming gradient, which is narrower than A.
        scaled = (grad * factor).to(grad.dtype)
        scores, grad_products = _scores_and_gradient(scaled @ values.T, z, ctx.tau)
        return grad_products @ keys, grad_products.T @ x, scores.T @ grad, None


def _normalise_and_activate(products: Scores, tau: float) -> tuple[Scores, RowFactor, Scores]:
    """Return Z = tau A / ||A|| in the memory of A, tau / ||A|| and gelu(Z)."""
    if _has_kernel(products):
        return products, *norm_gelu_cpu.normalise_and_activate(products, tau, SMALLEST_NORM)
    factor = row_factor(products, tau)
    z = products.mul_(factor)
    return z, factor, F.gelu(z)


def _scores_and_gradient(grad: Scores, z: Scores, tau: float) -> tuple[Scores, Scores]:
    """Return gelu(Z), and dA = g - Z (Z . g) / tau^2 with g = dS gelu'(Z), in the memory of `grad` = dS.

    dS carries the factor tau / ||A|| already, so it is the gradient of Appendix A,
    dA = (tau / ||A||) (g - A^ (A^ . g)) with A^ = A / ||A|| = Z / tau.
    """
    if _has_kernel(z):
        return norm_gelu_cpu.scores_and_gradient(grad, z, tau)
    scores = z * torch.special.ndtr(z) if torch.compiler.is_compiling() else F.gelu(z)
    # (Written another way for the compiler, which would else keep gelu(Z) of the forward pass.)
    g: Tensor = torch.ops.aten.gelu_backward.grad_input(grad, z, grad_input=grad)
    along = (g * z).sum(dim=-1, keepdim=True)
    return scores, g.addcmul_(z, along, value=-1 / (tau * tau))


def _has_kernel(products: Scores) -> bool:
    """Say whether the fused C++ kernel applies; torch.compile makes its own."""
    return not torch.compiler.is_compiling() and norm_gelu_cpu.fits(products)
