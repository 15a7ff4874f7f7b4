"""Score functions of Pattention: from the products A = x K^T (one per parameter token) to the weights of the values."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

ScoreName = Literal["l2_gelu", "gelu_l2", "gelu_l1", "exp_l1", "softmax", "gelu", "l2", "gelu_layernorm"]
Scores = Float[Tensor, "*batch tokens"]
RowFactor = Float[Tensor, "*batch 1"]

SMALLEST_NORM = 1e-12
"""A row with a smaller norm counts as a zero row: its scores are zero and it passes no gradient on, where the formula
would give 0/0. The official GPU code has no such guard, the TPU code adds 1e-5 or 1e-8 to every norm instead."""


def row_factor(rows: Scores, scale: float, order: int = 2) -> RowFactor:
    """Return scale / ||row||, or 0 for a zero row; of rows in half precision in float32, so that it is not rounded."""
    half = rows.dtype in (torch.bfloat16, torch.float16)
    norm: Tensor = torch.linalg.vector_norm(
        rows, ord=order, dim=-1, keepdim=True, dtype=torch.float32 if half else rows.dtype
    )
    return torch.where(norm > SMALLEST_NORM, scale / norm.clamp_min(SMALLEST_NORM), 0.0)


def normalised(rows: Scores, scale: float, order: int = 2) -> Scores:
    """Return scale row / ||row||, rounded once to the rows' type; a zero row stays zero."""
    return (rows * row_factor(rows, scale, order)).to(rows.dtype)


def l2_gelu(products: Scores, tau: float) -> Scores:
    """S = gelu(tau A / ||A||_2), the published order (arXiv:2410.23168, eq. 5, version 1; eq. 16, later version)."""
    return F.gelu(normalised(products, tau))


def gelu_l2(products: Scores, tau: float) -> Scores:
    """S = tau g / ||g||_2 with g = gelu(A): the other order (official code, `gelu_l2_norm`)."""
    return normalised(F.gelu(products), tau)


def gelu_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 g / ||g||_1 with g = gelu(A): row 2 of Table 4 (arXiv:2410.23168).

    Neither official code has it, so its exact form is our choice: GeLU first, then the sum of absolute values, and
    tau^2 = n in place of softmax's factor n.
    """
    return normalised(F.gelu(products), tau * tau, order=1)


def exp_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 exp(A) / ||exp(A)||_1: softmax times n (official code, `softmax`; here with the maximum subtracted)."""
    return torch.softmax(products, dim=-1) * (tau * tau)


def softmax(products: Scores, tau: float) -> Scores:
    """S_i = exp(A_i) / ||exp(A)||_1, weights that sum to one, no tau (arXiv:2410.23168, Appendix A, to compare with).

    Attention's 1/sqrt(d) is left to the keys, whose initial standard deviation (init = fan_in) is just that.
    """
    return torch.softmax(products, dim=-1)


def gelu(products: Scores, tau: float) -> Scores:
    """S = A cdf(A), no norm and no tau: a plain two-layer MLP (official TPU code, `gelu`, in JAX's tanh form)."""
    return F.gelu(products)


def l2(products: Scores, tau: float) -> Scores:
    """S = tau A / ||A||_2, no activation (official TPU code, `l2_norm`)."""
    return normalised(products, tau)


def gelu_layernorm(products: Scores, tau: float) -> Scores:
    """S = (g - mean(g)) / sqrt(variance(g) + 1e-6) with g = gelu(A), no tau (official TPU code, `gelu_layer_norm`).

    The code's GeLU is JAX's tanh form; here it is exact, as in all scores.
    """
    return F.layer_norm(F.gelu(products), products.shape[-1:], eps=1e-6)


SCORES: dict[str, Callable[[Tensor, float], Tensor]] = {
    score.__name__: score for score in (l2_gelu, gelu_l2, gelu_l1, exp_l1, softmax, gelu, l2, gelu_layernorm)
}
