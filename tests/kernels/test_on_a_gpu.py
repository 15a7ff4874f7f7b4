"""The kernels match the torch engine and the formulas on a GPU. Without a GPU the tests are skipped."""

import math
from dataclasses import replace

import pytest
import torch
from test_interpreted import DTYPES, POLICIES, in_single_precision, prompt

from formerlab.cache import Decay, engines
from formerlab.layers.pattention import lean_pattention
from formerlab.layers.score import l2_gelu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [24, 1000, 5000])
def test_pattention_matches_the_formula(dtype, tokens):
    shapes = (33, 6), (tokens, 6), (tokens, 5)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.float64) for shape in shapes]
    inputs[0][5] = 0.0
    weight = torch.randn(33, 5, device="cuda", dtype=torch.float64)

    def formula(x, keys, values, tau):
        return l2_gelu(x @ keys.T, tau) @ values

    def output_and_gradients(function, dtype):
        arguments = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        y = function(*arguments, math.sqrt(tokens))
        return y, *torch.autograd.grad((y * weight.to(dtype)).sum(), arguments)

    expected_tensors = output_and_gradients(formula, torch.float64)
    for actual, expected in zip(output_and_gradients(lean_pattention, dtype), expected_tensors, strict=True):
        assert actual.dtype == dtype
        assert (actual - expected).norm() < 16 * torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("policy", [*POLICIES, Decay()], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pruned_attention_nearly_always_matches_the_torch_engine(triton, policy, dtype):
    """Another order of sums may swap two keys with nearly equal scores. An error in the kernel would swap many keys."""
    lengths = [500, 311, 64]
    inputs = prompt(policy, 0.4, lengths, 4, 2, 64, dtype)
    on_gpu = replace(inputs, q=inputs.q.cuda(), k=inputs.k.cuda(), v=inputs.v.cuda())
    run = engines.choose_engine(policy, on_gpu)
    assert run is not engines.run_in_torch
    actual, expected = run(policy, on_gpu), engines.run_in_torch(policy, in_single_precision(inputs))
    for row, length in enumerate(lengths):
        last_query, expected_last_query = (
            result.last_query[row, :, :length].cpu().clamp(max=length) for result in (actual, expected)
        )
        assert (last_query == expected_last_query).double().mean() > 0.98
        error = (actual.out[row, :, :length].cpu().float() - expected.out[row, :, :length]).abs().amax(-1)
        assert error.quantile(0.9) < 16 * torch.finfo(dtype).eps * 4
