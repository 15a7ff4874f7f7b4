"""The kernels match their references in Triton's interpreter."""

import math
from dataclasses import replace

import pytest
import torch

from formerlab.cache import H2O, TOVA, Decay, Knorm, Local, StreamingLLM, engines
from formerlab.cache import resolve_budget as count
from formerlab.cache.policies.policy import Prompt
from formerlab.layers.score import SMALLEST_NORM, l2_gelu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def prompt(policy, budget, lengths, heads, key_heads, d_head, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(lengths), max(lengths), number, d_head) for number in (heads, key_heads, key_heads)]
    q, k, v = ((2 * torch.randn(shape, generator=generator)).to(dtype).transpose(1, 2) for shape in shapes)
    return Prompt(q, k, v, [count(budget, n) for n in lengths], lengths)


def in_single_precision(given):
    return replace(given, q=given.q.float(), k=given.k.float(), v=given.v.float())


def check_pruned_attention(policy, given, chunk=None, separate=False):
    """Compare with the reference on the same inputs in float32, the precision of the kernel's sums."""
    from formerlab.cache import triton_engine
    from formerlab.kernels import pruned_attention

    pruned_attention.CHUNK, triton_engine.SEPARATE = chunk or 64, separate
    actual = triton_engine.run(policy, given)
    expected = engines.run_in_torch(policy, in_single_precision(given))
    eps = torch.finfo(given.q.dtype).eps
    assert actual.out.dtype == given.q.dtype
    for row, length in enumerate(given.lengths):
        assert torch.equal(
            actual.last_query[row, :, :length].clamp(max=length), expected.last_query[row, :, :length].clamp(max=length)
        )
        difference = actual.out[row, :, :length].float() - expected.out[row, :, :length]
        assert difference.abs().max() <= 16 * eps * given.v[row].float().abs().max()
        if length == given.q.shape[2]:
            retained = expected.last_query[row] >= length
            scores, expected_scores = actual.scores[row][retained], expected.scores[row][retained]
            torch.testing.assert_close(scores, expected_scores, atol=1e-5, rtol=1e-5)


POLICIES = (
    Local(),
    StreamingLLM(sink=2),
    H2O(),
    Decay(alpha=0.7, recent=0.3, sink=2),
    TOVA(),
    Knorm(),
)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_pruned_attention_matches_the_reference(interpreted, policy):
    """Two query heads share a key-value head, the second sequence is padded, and sizes are not powers of two."""
    interpreted(check_pruned_attention, policy, prompt(policy, 0.4, [18, 11], 2, 1, 5))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_separate_kernels_match_the_reference(interpreted, policy):
    """The sequences have three tiles of queries and keys; the second one is padded."""
    interpreted(check_pruned_attention, policy, prompt(policy, 0.4, [70, 41], 2, 1, 5), None, True)


def test_separate_kernels_match_the_reference_if_all_heads_share_the_retained_keys(interpreted):
    given = prompt(Decay(scope="layer"), 9, [40], 4, 2, 16, torch.float16)
    interpreted(check_pruned_attention, Decay(scope="layer"), given, None, True)


def test_pruned_attention_over_several_blocks_and_chunks(interpreted):
    """Three blocks of queries, with more slots than one load reads."""
    interpreted(check_pruned_attention, Decay(), prompt(Decay(), 24, [35], 1, 1, 16), 16)


def test_pruned_attention_computes_in_float32(interpreted):
    """In float16, because the interpreter does not support bfloat16 matrix products."""
    interpreted(check_pruned_attention, H2O(), prompt(H2O(), 6, [20], 1, 1, 16, torch.float16))


def test_evicting_the_largest_logit_does_not_underflow(interpreted):
    """After the key with the largest logit is evicted within a block, exponentials relative to its logit underflow."""
    given = prompt(Local(), 6, [20], 1, 1, 16)
    given.k[:, :, 0] = 1000 * given.q[:, :, 7:16].mean(2)
    given.k[:, :, 9] = 1000 * given.q[:, :, 16:].mean(2)
    interpreted(check_pruned_attention, Local(), given)


def check_reductions(heads, queries):
    """Count the reductions in a block of queries; the threads of a program synchronise at each reduction."""
    from triton.runtime import interpreter

    from formerlab.cache import triton_engine

    reductions, reduce = [], interpreter.ReduceOps.apply_impl
    given = prompt(Decay(), 4, [queries], heads, 1, 16)
    given.q.mul_(0.1)  # no logit is far above the others
    with pytest.MonkeyPatch.context() as patch:
        record = lambda self, tensor: reductions.append(1) or reduce(self, tensor)  # noqa: E731
        patch.setattr(interpreter.ReduceOps, "apply_impl", record)
        triton_engine.run(Decay(), given)
    maxima, evictions = heads, queries - 4
    assert len(reductions) == heads * queries + evictions + maxima


@pytest.mark.parametrize("heads", [1, 3])
def test_each_query_needs_one_reduction_per_head_and_one_minimum(interpreted, heads):
    interpreted(check_reductions, heads, 16)


def check_equal_scores():
    from formerlab.cache import triton_engine

    k = torch.zeros(1, 1, 24, 16)
    last = triton_engine.run(Decay(alpha=0.0), Prompt(k, k, k, [6], [24])).last_query
    assert last[0, 0].tolist() == [*range(6, 24), *[24] * 6]


def test_ties_evict_the_older_key(interpreted):
    interpreted(check_equal_scores)


def check_nan_key():
    """A key with NaN is evicted after some queries, and every query retains the budget."""
    from formerlab.cache import triton_engine

    given = prompt(Decay(), 6, [24], 1, 1, 16)
    given.k[:, :, 3] = math.nan
    actual = triton_engine.run(Decay(), given)
    visible = (actual.last_query[0, 0] >= torch.arange(24)[:, None]) & (torch.arange(24) <= torch.arange(24)[:, None])
    assert visible.sum(1).tolist() == [min(query + 1, 7) for query in range(24)]


def test_nan_attention_respects_the_budget(interpreted):
    interpreted(check_nan_key)


class GpuTensor(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    is_cuda = True


def test_a_simulation_on_a_gpu_runs_the_kernel_if_supported(triton, monkeypatch, caplog):
    from formerlab import kernels
    from formerlab.cache import KeyDiff, triton_engine

    given = prompt(Decay(), 0.4, [40], 2, 2, 16)
    on_gpu = replace(given, q=given.q.as_subclass(GpuTensor))
    assert engines.choose_engine(Decay(), on_gpu) is triton_engine.run
    assert engines.choose_engine(KeyDiff(), on_gpu) is engines.run_in_torch, "its score is not a sum of attention"
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    kernels.usable.cache_clear()
    assert engines.choose_engine(Decay(), on_gpu) is engines.run_in_torch
    assert "pruned attention runs in plain torch" in caplog.text
    kernels.usable.cache_clear()


def check_norm_and_gelu(tokens, spread, dtype):
    """Compare with the formula and its gradient in double precision."""
    from formerlab.kernels import norm_gelu

    assert norm_gelu.fits(torch.empty(2, tokens, dtype=dtype))
    tau, eps = spread * math.sqrt(tokens), torch.finfo(dtype).eps
    products, upstream = (torch.randn(4, tokens).to(dtype) for _ in range(2))
    products[1] = 0
    exact = products.double().requires_grad_()
    expected = l2_gelu(exact, tau)
    (expected_gradient,) = torch.autograd.grad((expected * upstream).sum(), exact)
    factor, scores = norm_gelu.normalise_and_activate(products, tau, SMALLEST_NORM)
    backward_scores, gradient = norm_gelu.scores_and_gradient((upstream * factor).to(dtype), products, tau)
    assert torch.equal(scores, backward_scores)
    assert all(tensor[1].eq(0).all() for tensor in (products, factor, scores, gradient))
    assert (scores - expected).norm() <= 8 * eps * expected.norm()
    upstream_norm = (upstream * factor).norm()  # the error is relative to dS, because terms cancel
    assert (gradient - expected_gradient).norm() <= 8 * eps * (expected_gradient.norm() + upstream_norm)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [5, 64, 2176])
def test_norm_and_gelu_match_the_formula_and_its_gradient(interpreted, tokens, dtype):
    for spread in (0.3, 8.0):  # a large tau moves Z far into the tails of the normal distribution
        interpreted(check_norm_and_gelu, tokens, spread, dtype)
