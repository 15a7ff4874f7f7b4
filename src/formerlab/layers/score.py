"""Score functions of Pattention: from the products A = x K^T (one per parameter token) to the weights of the values."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

ScoreName = Literal["l2_gelu", "gelu_l2", "gelu_l1", "exp_l1"]
Scores = Float[Tensor, "*batch tokens"]

SMALLEST_NORM = 1e-12
"""Norms are clamped here, so that a zero row gives zero and not 0/0; no row of ordinary size is changed by it."""


def l2_gelu(products: Scores, tau: float) -> Scores:
    """S = gelu(tau A / ||A||_2), the published order (arXiv:2410.23168, eq. 5, version 1; eq. 16, later version)."""
    norm: Tensor = torch.linalg.vector_norm(products, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
    return F.gelu(products * (tau / norm))


def gelu_l2(products: Scores, tau: float) -> Scores:
    """S = tau g / ||g||_2 with g = gelu(A): the other order (official code, `gelu_l2_norm`)."""
    activated = F.gelu(products)
    norm: Tensor = torch.linalg.vector_norm(activated, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
    return activated * (tau / norm)


def gelu_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 g / ||g||_1 with g = gelu(A): row 2 of Table 4 (arXiv:2410.23168).

    Neither official code has it, so its exact form is our choice: GeLU first, then the sum of absolute values, and
    tau^2 = n in place of softmax's factor n.
    """
    activated = F.gelu(products)
    norm: Tensor = torch.linalg.vector_norm(activated, ord=1, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
    return activated * (tau * tau / norm)


def exp_l1(products: Scores, tau: float) -> Scores:
    """S = tau^2 exp(A) / ||exp(A)||_1: softmax times n (official code, `softmax`; here with the maximum subtracted)."""
    return torch.softmax(products, dim=-1) * (tau * tau)


SCORES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "l2_gelu": l2_gelu,
    "gelu_l2": gelu_l2,
    "gelu_l1": gelu_l1,
    "exp_l1": exp_l1,
}
