"""The kernels match their references in Triton's interpreter."""

import math
from dataclasses import replace

import pytest
import torch

from formerlab.cache import H2O, TOVA, Decay, Knorm, Local, StreamingLLM, engines
from formerlab.cache import resolve_budget as count
from formerlab.cache.eviction import visible_mask
from formerlab.cache.policies.policy import Prompt

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def prompt(policy, budget, lengths, heads, key_heads, d_head, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(lengths), max(lengths), number, d_head) for number in (heads, key_heads, key_heads)]
    q, k, v = ((2 * torch.randn(shape, generator=generator)).to(dtype).transpose(1, 2) for shape in shapes)
    return Prompt(q, k, v, [count(budget, n) for n in lengths], lengths)


def in_single_precision(inputs):
    return replace(inputs, q=inputs.q.float(), k=inputs.k.float(), v=inputs.v.float())


def check_pruned_attention(policy, inputs, chunk=64):
    """Compare with the torch engine on the same inputs in float32, the precision of the kernel's sums."""
    from formerlab.cache import triton_engine
    from formerlab.kernels import pruned_attention

    pruned_attention.CHUNK = chunk
    actual = triton_engine.run(policy, inputs)
    expected = engines.run_in_torch(policy, in_single_precision(inputs))
    eps = torch.finfo(inputs.q.dtype).eps
    assert actual.out.dtype == inputs.q.dtype
    for row, length in enumerate(inputs.lengths):
        assert torch.equal(
            actual.last_query[row, :, :length].clamp(max=length), expected.last_query[row, :, :length].clamp(max=length)
        )
        difference = actual.out[row, :, :length].float() - expected.out[row, :, :length]
        assert difference.abs().max() <= 16 * eps * inputs.v[row].float().abs().max()
        if length == inputs.q.shape[2]:
            retained = expected.last_query[row] >= length
            scores, expected_scores = actual.scores[row][retained], expected.scores[row][retained]
            torch.testing.assert_close(scores, expected_scores, atol=1e-5, rtol=1e-5)


POLICIES = (Local(), StreamingLLM(sink=2), H2O(), Decay(alpha=0.7, recent=0.3, sink=2), TOVA(), Knorm())


@pytest.mark.parametrize("policy", [*POLICIES, Decay(scope="layer")], ids=repr)
def test_pruned_attention_matches_the_torch_engine(interpreted, policy):
    """Two query heads share a key-value head, the second sequence is padded, and sizes are not powers of two."""
    interpreted(check_pruned_attention, policy, prompt(policy, 0.4, [18, 11], 4, 2, 5))


def test_pruned_attention_over_several_blocks_and_chunks(interpreted):
    """The prompt has three blocks of queries, and the cache has more slots than one load reads."""
    interpreted(check_pruned_attention, Decay(), prompt(Decay(), 24, [35], 1, 1, 16), 16)


def test_pruned_attention_computes_in_float32(interpreted):
    """The inputs are float16, because the interpreter does not support bfloat16 matrix products."""
    interpreted(check_pruned_attention, H2O(), prompt(H2O(), 6, [20], 1, 1, 16, torch.float16))


def test_evicting_the_largest_logit_does_not_underflow(interpreted):
    """Exponentials relative to the largest logit of a block would underflow after the eviction of its key."""
    inputs = prompt(Local(), 6, [20], 1, 1, 16)
    inputs.k[:, :, 0] = 1000 * inputs.q[:, :, 7:16].mean(2)
    inputs.k[:, :, 9] = 1000 * inputs.q[:, :, 16:].mean(2)
    interpreted(check_pruned_attention, Local(), inputs)


def check_reductions(heads, queries):
    """Count the reductions in a block of queries; the threads of a program synchronise at each reduction.

    A head needs one maximum per block and one sum per query, and each eviction needs one minimum.
    """
    from triton.runtime import interpreter

    from formerlab.cache import triton_engine

    reductions, reduce = [], interpreter.ReduceOps.apply_impl
    inputs = prompt(Decay(), 4, [queries], heads, 1, 16)
    inputs.q.mul_(0.1)  # all logits are close to each other
    with pytest.MonkeyPatch.context() as patch:
        record = lambda self, tensor: reductions.append(1) or reduce(self, tensor)  # noqa: E731
        patch.setattr(interpreter.ReduceOps, "apply_impl", record)
        triton_engine.run(Decay(), inputs)
    maxima, evictions = heads, queries - 4
    assert len(reductions) == heads * queries + evictions + maxima


@pytest.mark.parametrize("heads", [1, 3])
def test_number_of_reductions_in_a_block_of_queries(interpreted, heads):
    interpreted(check_reductions, heads, 16)


def check_equal_scores():
    from formerlab.cache import triton_engine

    k = torch.zeros(1, 1, 24, 16)
    last_query = triton_engine.run(Decay(alpha=0.0), Prompt(k, k, k, [6], [24])).last_query
    assert last_query[0, 0].tolist() == [*range(6, 24), *[24] * 6]


def test_ties_evict_the_older_key(interpreted):
    interpreted(check_equal_scores)


def check_nan_key():
    """A key with NaN is evicted after some queries, and every query sees at most budget + 1 keys."""
    from formerlab.cache import triton_engine

    inputs = prompt(Decay(), 6, [24], 1, 1, 16)
    inputs.k[:, :, 3] = math.nan
    visible = visible_mask(triton_engine.run(Decay(), inputs).last_query)[0, 0]
    assert visible.sum(1).tolist() == [min(query + 1, 7) for query in range(24)]


def test_nan_attention_respects_the_budget(interpreted):
    interpreted(check_nan_key)


class GpuTensor(torch.Tensor):
    """A tensor that reports a GPU as its device."""

    is_cuda = True


def test_a_simulation_on_a_gpu_runs_the_kernel_if_supported(triton, monkeypatch, caplog):
    from formerlab import kernels
    from formerlab.cache import KeyDiff, triton_engine

    inputs = prompt(Decay(), 0.4, [40], 2, 2, 16)
    on_gpu = replace(inputs, q=inputs.q.as_subclass(GpuTensor))
    assert engines.choose_engine(Decay(), on_gpu) is triton_engine.run
    # the score of this policy is not a sum of attention
    assert engines.choose_engine(KeyDiff(), on_gpu) is engines.run_in_torch
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    kernels.triton_usable.cache_clear()
    assert engines.choose_engine(Decay(), on_gpu) is engines.run_in_torch
    assert "pruned attention runs in plain torch" in caplog.text
    kernels.triton_usable.cache_clear()
