"""Pattention (arXiv:2410.23168): the formula, and finite results for zero rows."""

import math

import pytest
import torch
from torch.distributions import Normal

from formerlab.layers import Pattention
from formerlab.layers.initialization import initialise
from formerlab.layers.score import SCORES

NORMAL = Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def gelu(z):
    return z * NORMAL.cdf(z)


def reference(score, products, tau):
    """Return the scores by the formulas of the paper (arXiv:2410.23168) and of its released code."""
    if score == "l2_gelu":
        return gelu(tau * products / products.square().sum(-1, keepdim=True).sqrt())
    if score == "l2":
        return tau * products / products.square().sum(-1, keepdim=True).sqrt()
    if score in ("exp_l1", "softmax"):
        return (tau**2 if score == "exp_l1" else 1) * products.exp() / products.exp().sum(-1, keepdim=True)
    activated = gelu(products)
    if score == "gelu":
        return activated
    if score == "gelu_l2":
        return tau * activated / activated.square().sum(-1, keepdim=True).sqrt()
    return tau**2 * activated / activated.abs().sum(-1, keepdim=True)


def random_layer(tokens=7, d_in=5, d_out=4, **options):
    layer = Pattention(tokens=tokens, **options).build(d_in, d_out)
    initialise(layer, 3)
    return layer.double()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tau", [None, 1.7])
def test_the_layer_matches_its_formula(score, tau):
    layer = random_layer(score=score, tau=tau)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    expected = reference(score, x @ layer.keys.T, math.sqrt(7) if tau is None else tau) @ layer.values
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_zero_row_stays_finite(score, dtype):
    layer = random_layer(score=score).to(dtype)
    x = torch.randn(3, 5, dtype=dtype)
    x[1] = 0.0
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in (x, layer.keys, layer.values))
    if score not in ("exp_l1", "softmax"):
        assert y[1].eq(0).all()
