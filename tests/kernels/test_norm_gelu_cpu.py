"""The C++ kernels of norm and GeLU: formula, gradient, and the choice of implementation."""

import math
import shutil

import pytest
import torch

from formerlab.kernels import norm_gelu_cpu
from formerlab.layers.pattention import lean_pattention
from formerlab.layers.score import SMALLEST_NORM, l2_gelu

DTYPES = [torch.float32, torch.bfloat16]
needs_kernel = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def forward_and_backward(products, upstream, tau):
    """Return Z, the factors, the scores of both passes and the gradient."""
    z = products.clone()
    factor, scores = norm_gelu_cpu.normalise_and_activate(z, tau, SMALLEST_NORM)
    backward_scores, gradient = norm_gelu_cpu.scores_and_gradient((upstream * factor).to(z.dtype), z, tau)
    return z, factor, scores, backward_scores, gradient


def random_inputs(dtype, tokens, rows):
    return (torch.randn(rows, tokens).to(dtype) for _ in range(2))


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 5, 64, 1024, 2500])
@pytest.mark.parametrize("spread", [0.3, 1.0, 8.0])
def test_the_kernels_match_the_formula_and_its_gradient(dtype, tokens, spread):
    """A large tau moves Z far into the tails of the normal distribution."""
    tau, eps = spread * math.sqrt(tokens), torch.finfo(dtype).eps
    products, upstream = random_inputs(dtype, tokens, 4)
    products[1] = 0
    exact = products.double().requires_grad_()
    expected = l2_gelu(exact, tau)
    (expected_gradient,) = torch.autograd.grad((expected * upstream).sum(), exact)
    z, factor, scores, backward_scores, gradient = forward_and_backward(products, upstream, tau)
    assert torch.equal(scores, backward_scores)
    assert all(tensor[1].eq(0).all() for tensor in (z, factor, scores, gradient))
    assert (scores - expected).norm() <= 8 * eps * expected.norm()
    upstream_norm = (upstream * factor).norm()  # relative to the gradient of the scores, because terms cancel
    assert (gradient - expected_gradient).norm() <= 8 * eps * (expected_gradient.norm() + upstream_norm)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_the_number_of_threads(dtype):
    products, upstream = random_inputs(dtype, 300, 50)
    one_thread = forward_and_backward(products, upstream, 17.0)
    torch.set_num_threads(2)
    two_threads = forward_and_backward(products, upstream, 17.0)
    assert all(torch.equal(a, b) for a, b in zip(one_thread, two_threads, strict=True))


@needs_kernel
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_has_no_effect(default):
    products, upstream = random_inputs(torch.float32, 64, 4)
    expected = forward_and_backward(products, upstream, 8.0)
    torch.set_default_dtype(default)
    try:
        actual = forward_and_backward(products, upstream, 8.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@needs_kernel
def test_unsupported_tensors_use_torch():
    x = torch.zeros(4, 4)
    assert norm_gelu_cpu.fits(x)
    assert norm_gelu_cpu.fits(x.bfloat16())
    unsupported = x.double(), x.half(), x.expand(4, 4, 4).transpose(0, 2), torch.zeros(4, 4, device="meta")
    assert not any(map(norm_gelu_cpu.fits, unsupported))


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_compiler_torch_gives_the_same_result(dtype, monkeypatch):
    def output_and_gradients():
        inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((7, 6), (24, 6), (24, 5))]
        y = lean_pattention(*inputs, tau=4.0)
        return y, *torch.autograd.grad(y.float().square().sum(), inputs)

    torch.manual_seed(1)
    with_kernel = output_and_gradients()
    monkeypatch.setattr(norm_gelu_cpu, "load_library", lambda *_: None)
    torch.manual_seed(1)
    for actual, expected in zip(with_kernel, output_and_gradients(), strict=True):
        assert (actual - expected).norm() <= 16 * torch.finfo(dtype).eps * expected.norm()
