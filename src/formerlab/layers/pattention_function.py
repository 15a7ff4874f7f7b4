"""Pattention with the score l2_gelu, written for memory: it keeps half of what a plain MLP of the same shape keeps.

Between the passes lie the normalised products Z = tau A / ||A||, A = x K^T, and one factor tau / ||A|| per row; the
scores gelu(Z) are computed again. The formula written out is `score.l2_gelu` between two matrix products; the forward
pass is the same to the bit, the backward pass is its closed form. Which code computes it depends on the device, on the
installed Triton and on torch.compile, never on timings, so a run that is interrupted goes on with the same code.
"""

import functools
import importlib.util
import logging
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formerlab.layers.score import SMALLEST_NORM, RowFactor, Scores, row_factor

X = Float[Tensor, "*batch d_in"]
Keys = Float[Tensor, "tokens d_in"]
Values = Float[Tensor, "tokens d_out"]
Y = Float[Tensor, "*batch d_out"]


def lean_pattention(x: X, keys: Keys, values: Values, tau: float) -> Y:
    """Return gelu(tau A / ||A||_2) V with A = x K^T (arXiv:2410.23168, eq. 4 and 5).

    Under autocast the operands are cast as those of a matrix product are. Second derivatives are not available.
    """
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        x, keys, values = (operand.to(torch.get_autocast_dtype(device)) for operand in (x, keys, values))
    y: Tensor = _Pattention.apply(x.reshape(-1, x.shape[-1]), keys, values, tau)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], values.shape[1])


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
        scores = _activate_again(z)
        grad_values = scores.T @ grad
        # The factor of dA multiplies the incoming gradient, which is narrower than A.
        scaled = (grad * factor).to(grad.dtype)
        grad_products = _gradient(scaled @ values.T, z, ctx.tau, scratch=scores)
        return grad_products @ keys, grad_products.T @ x, grad_values, None


def _normalise_and_activate(products: Scores, tau: float) -> tuple[Scores, RowFactor, Scores]:
    """Return Z = tau A / ||A|| in the memory of A, tau / ||A|| and gelu(Z)."""
    if (kernels := _kernels_for(products)) is not None:
        return products, *kernels.normalise_and_activate(products, tau, SMALLEST_NORM)
    factor = row_factor(products, tau)
    z = products.mul_(factor)
    return z, factor, F.gelu(z)


def _activate_again(z: Scores) -> Scores:
    """Return gelu(Z)."""
    if torch.compiler.is_compiling():  # written another way, or the compiler would keep gelu(Z) of the forward pass
        cdf: Tensor = torch.special.ndtr(z)
        return z * cdf
    return F.gelu(z)


def _gradient(grad: Scores, z: Scores, tau: float, scratch: Scores) -> Scores:
    """Return dA = g - Z (Z . g) / tau^2 with g = dS gelu'(Z), where dS already carries the factor tau / ||A||.

    It is the gradient of Appendix A, dA = (tau / ||A||) (g - A^ (A^ . g)) with A^ = A / ||A|| = Z / tau. `grad` becomes
    the result, `scratch` is overwritten.
    """
    if (kernels := _kernels_for(z)) is not None:
        out: Tensor = kernels.gradient(grad, z, tau)
        return out
    g: Tensor = torch.ops.aten.gelu_backward.grad_input(grad, z, grad_input=grad)
    along = torch.mul(g, z, out=scratch).sum(dim=-1, keepdim=True)
    return g.addcmul_(z, along, value=-1 / (tau * tau))


def _kernels_for(products: Scores) -> ModuleType | None:
    """Return the fused kernels where they apply: on a GPU, outside torch.compile, which makes its own."""
    if not products.is_cuda or products.dtype == torch.float64 or torch.compiler.is_compiling():
        return None
    return _kernels()


@functools.cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        logging.getLogger(__name__).warning("Pattention runs unfused on this GPU: triton is not installed")
        return None
    from formerlab.kernels import norm_gelu

    return norm_gelu
