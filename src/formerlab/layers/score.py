"""Score functions of Pattention: they map the products A = x K^T, one per parameter token, to weights of the values."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

ScoreName = Literal["l2_gelu", "gelu_l2", "gelu_l1", "exp_l1", "softmax", "gelu", "l2"]
Scores = Float[Tensor, "*batch tokens"]
RowFactor = Float[Tensor, "*batch 1"]

SMALLEST_NORM = 1e-12
"""Scores and gradient of a row with a smaller norm are zero. The official GPU code does not check for zero norms; the
TPU code adds 1e-5 or 1e-8 to every norm."""


def row_factor(rows: Scores, scale: float, order: int = 2) -> RowFactor:
    """Return scale / (L`order` norm of the row), or 0 for a zero row; for half-precision rows the result is float32."""
    half = rows.dtype in (torch.bfloat16, torch.float16)
    norm: Tensor = torch.linalg.vector_norm(
        rows, ord=order, dim=-1, keepdim=True, dtype=torch.float32 if half else rows.dtype
    )
    return torch.where(norm > SMALLEST_NORM, scale / norm.clamp_min(SMALLEST_NORM), 0.0)


def normalised(rows: Scores, scale: float, order: int = 2) -> Scores:
    """Return the rows times `row_factor`, rounded once to their dtype."""
    return (rows * row_factor(rows, scale, order)).to(rows.dtype)


def l2_gelu(products: Scores, tau: float) -> Scores:
    """S = gelu(tau A / ||A||_2), the published order (arXiv:2410.23168, eq. 16; version 1, eq. 5)."""
    return F.gelu(normalised(products, tau))


def gelu_l2(products: Scores, tau: float) -> Scores:
    """S = tau g / ||g||_2 with g = gelu(A): GeLU before the norm (official code, `gelu_l2_norm`)."""
    return normalised(F.gelu(products), tau)


def gelu_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 g / ||g||_1 with g = gelu(A): row 2 of Table 4 (arXiv:2410.23168).

    The official code does not contain this score. Our form applies GeLU first, then the L1 norm, and scales by tau^2 (n
    by default), as `exp_l1` scales the softmax.
    """
    return normalised(F.gelu(products), tau * tau, order=1)


def exp_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 exp(A) / ||exp(A)||_1: softmax times tau^2, which is n by default (official code, `softmax`).

    torch.softmax subtracts the maximum of A first; the official code does not.
    """
    return torch.softmax(products, dim=-1) * (tau * tau)


def softmax(products: Scores, tau: float) -> Scores:
    """S_i = exp(A_i) / ||exp(A)||_1, without tau (baseline of arXiv:2410.23168, Appendix A).

    There is no factor 1/sqrt(d), because the initial standard deviation of the keys (init = fan_in) contains it.
    """
    return torch.softmax(products, dim=-1)


def gelu(products: Scores, tau: float) -> Scores:
    """S = GeLU(A), without norm and tau, as in a two-layer MLP (exact; official TPU code: tanh approximation)."""
    return F.gelu(products)


def l2(products: Scores, tau: float) -> Scores:
    """S = tau A / ||A||_2, without activation (official TPU code, `l2_norm`)."""
    return normalised(products, tau)


SCORES: dict[str, Callable[[Tensor, float], Tensor]] = {
    score.__name__: score for score in (l2_gelu, gelu_l2, gelu_l1, exp_l1, softmax, gelu, l2)
}
