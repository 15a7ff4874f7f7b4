"""Pattention (arXiv:2410.23168): formula, invariances, gradients."""

import math

import pytest
import torch
from torch.distributions import Normal

from formerlab.layers import Pattention
from formerlab.layers.initial import initialise
from formerlab.layers.score import SCORES

NORMAL = Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


def gelu(z):
    return z * NORMAL.cdf(z)


def reference(score, products, tau):
    """The published formulas, written row by row (sections 1.1 and 1.3 of the paper's appendix and code)."""
    if score == "l2_gelu":
        return gelu(tau * products / products.square().sum(-1, keepdim=True).sqrt())
    if score == "l2":
        return tau * products / products.square().sum(-1, keepdim=True).sqrt()
    if score in ("exp_l1", "softmax"):
        return (tau**2 if score == "exp_l1" else 1) * products.exp() / products.exp().sum(-1, keepdim=True)
    activated = gelu(products)
    if score == "gelu":
        return activated
    if score == "gelu_layernorm":
        centred = activated - activated.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    if score == "gelu_l2":
        return tau * activated / activated.square().sum(-1, keepdim=True).sqrt()
    return tau**2 * activated / activated.abs().sum(-1, keepdim=True)


def drawn(tokens=7, d_in=5, d_out=4, **options):
    layer = Pattention(tokens=tokens, **options).build(d_in, d_out)
    initialise(layer, 3)
    return layer.double()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tau", [None, 1.7])
def test_the_layer_is_its_formula(score, tau):
    layer = drawn(score=score, tau=tau)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    expected = reference(score, x @ layer.keys.T, math.sqrt(7) if tau is None else tau) @ layer.values
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=1e-12)


def test_an_unknown_score_is_answered_with_the_choices():
    with pytest.raises(ValueError, match="l2_gelu") as caught:
        Pattention(score="sigmoid")
    assert all(name in str(caught.value) for name in SCORES)


@pytest.mark.parametrize("row_factor", [1e-3, 40.0])
def test_scaling_a_row_or_all_keys_changes_nothing(row_factor):
    layer = drawn()
    x = torch.randn(6, 5, dtype=torch.float64)
    y = layer(x)
    torch.testing.assert_close(layer(x * row_factor), y)
    with torch.no_grad():
        layer.keys.mul_(17.0)
    torch.testing.assert_close(layer(x), y)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_zero_row_stays_finite(score, dtype):
    layer = drawn(score=score).to(dtype)
    x = torch.randn(3, 5, dtype=dtype)
    x[1] = 0.0
    x.requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(tensor.grad.isfinite().all() for tensor in (x, layer.keys, layer.values))
    if score not in ("exp_l1", "softmax"):
        assert y[1].eq(0).all()


@pytest.mark.parametrize("score", ["l2_gelu", "gelu_l2", "gelu_l1", "l2"])
def test_a_zero_row_passes_no_gradient_on(score):
    """The bound on the norm alone would let it pass, times tau / SMALLEST_NORM."""
    products = torch.randn(3, 5, dtype=torch.float64)
    products[1] = 0.0
    products.requires_grad_()
    SCORES[score](products, 2.0).sum().backward()
    assert products.grad[1].eq(0).all()
    assert products.grad[0].ne(0).any()


@pytest.mark.parametrize("score", SCORES)
def test_large_products_stay_finite(score):
    products = torch.tensor([[200.0, -200.0, 1000.0]])
    assert SCORES[score](products, 3**0.5).isfinite().all()


def test_the_normalised_products_have_unit_mean_square():
    products = torch.randn(9, 31, dtype=torch.float64) * 5 + 2
    normalised = math.sqrt(31) * products / torch.linalg.vector_norm(products, dim=-1, keepdim=True)
    torch.testing.assert_close(SCORES["l2_gelu"](products, math.sqrt(31)), gelu(normalised))
    torch.testing.assert_close(normalised.square().mean(-1), torch.ones(9, dtype=torch.float64))


def test_the_jacobian_is_that_of_appendix_a():
    n = 11
    a = torch.randn(n, dtype=torch.float64)
    norm = a.square().sum().sqrt()
    z = math.sqrt(n) * a / norm
    slope = NORMAL.cdf(z) + z * NORMAL.log_prob(z).exp()
    expected = slope[:, None] / math.sqrt(n) / norm * (n * torch.eye(n, dtype=torch.float64) - torch.outer(z, z))
    counted = torch.autograd.functional.jacobian(lambda products: SCORES["l2_gelu"](products, math.sqrt(n)), a)
    torch.testing.assert_close(counted, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_those_of_finite_differences(score):
    layer = drawn(tokens=4, d_in=3, d_out=2, score=score)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def mapped(x, keys, values):
        return torch.func.functional_call(layer, {"keys": keys, "values": values}, (x,))

    assert torch.autograd.gradcheck(mapped, (x, layer.keys, layer.values))


@pytest.mark.parametrize("score", SCORES)
def test_the_order_of_the_tokens_does_not_matter(score):
    layer = drawn(score=score)
    x = torch.randn(6, 5, dtype=torch.float64)
    y = layer(x)
    order = torch.randperm(7)
    with torch.no_grad():
        layer.keys.copy_(layer.keys[order].clone())
        layer.values.copy_(layer.values[order].clone())
    torch.testing.assert_close(layer(x), y)


def test_tau_follows_the_token_count_unless_it_is_given():
    assert Pattention(tokens=576).scale == 24.0
    assert Pattention(tokens=576, tau=3.5).scale == 3.5
    assert Pattention(tokens=576, tau=3.5).build(4, 4).tau == 3.5


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"tau": 0.0}, {"tau": -1.0}, {"init": "zero"}])
def test_values_out_of_range_are_named(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=key):
        Pattention(**wrong)


def test_printing_shows_the_sizes():
    assert "tokens=7, d_in=5, d_out=4, tau=2.646, score=l2_gelu" in repr(drawn())
