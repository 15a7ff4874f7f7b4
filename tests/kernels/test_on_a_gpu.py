"""The kernels match their references on a GPU; skipped without a GPU."""

import math
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from test_interpreted import DTYPES, POLICIES, in_single_precision, prompt

from formerlab.cache import Decay, torch_engine
from formerlab.layers import pattention
from formerlab.layers.pattention import lean_pattention
from formerlab.layers.score import l2_gelu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [24, 1000, 5000])
@pytest.mark.parametrize("fused", [False, True])
def test_pattention_matches_the_formula(triton, monkeypatch, dtype, tokens, fused):
    if fused:
        monkeypatch.setattr(pattention, "TRITON", import_module("formerlab.kernels.norm_gelu"))
    shapes = (33, 6), (tokens, 6), (tokens, 5)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.float64) for shape in shapes]
    inputs[0][5] = 0.0
    weight = torch.randn(33, 5, device="cuda", dtype=torch.float64)

    def formula(x, keys, values, tau):
        return l2_gelu(x @ keys.T, tau) @ values

    def found(mapped, dtype):
        parts = [part.to(dtype).requires_grad_() for part in inputs]
        y = mapped(*parts, math.sqrt(tokens))
        return y, *torch.autograd.grad((y * weight.to(dtype)).sum(), parts)

    for actual, expected in zip(found(lean_pattention, dtype), found(formula, torch.float64), strict=True):
        assert actual.dtype == dtype
        assert (actual - expected).norm() < 16 * torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("policy", [*POLICIES, Decay()], ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("separate", [False, True])
def test_pruned_attention_nearly_always_matches_the_reference(triton, monkeypatch, policy, dtype, separate):
    """Another order of sums may swap two keys of nearly equal scores; a mistake would swap many keys."""
    monkeypatch.setattr(import_module("formerlab.cache.triton_engine"), "SEPARATE", separate)
    lengths = [500, 311, 64]
    given = prompt(policy, 0.4, lengths, 4, 2, 64, dtype)
    there = replace(given, q=given.q.cuda(), k=given.k.cuda(), v=given.v.cuda())
    run = torch_engine.choose(policy, there)
    assert run is not torch_engine.run
    actual, expected = run(policy, there), torch_engine.run(policy, in_single_precision(given))
    for row, length in enumerate(lengths):
        left, leaves = (pruned.last[row, :, :length].cpu().clamp(max=length) for pruned in (actual, expected))
        assert (left == leaves).double().mean() > 0.98
        off = (actual.out[row, :, :length].cpu().float() - expected.out[row, :, :length]).abs().amax(-1)
        assert off.quantile(0.9) < 16 * torch.finfo(dtype).eps * 4
