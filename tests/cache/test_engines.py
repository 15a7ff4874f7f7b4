"""The torch and numba engines agree."""

import logging
import subprocess
import sys

import pytest
import torch

from formerlab import kernels
from formerlab.cache import (
    H2O,
    TOVA,
    CachePolicy,
    CompressedCache,
    Decay,
    Full,
    KeyDiff,
    Knorm,
    Local,
    PrunedCache,
    Random,
    Simulation,
    StreamingLLM,
    engines,
    evicting,
)
from formerlab.cache import resolve_budget as count
from formerlab.cache.eviction import Eviction, coefficients
from formerlab.cache.policies.policy import Prompt
from formerlab.errors import UserError
from formerlab.spec import variants

POLICIES = [
    Local(),
    StreamingLLM(sink=2),
    H2O(),
    Decay(),
    Decay(alpha=0.0),
    Decay(alpha=0.7, recent=0.3, sink=3),
    Decay(scope="layer"),
    TOVA(),
    Knorm(),
    Random(),
    Random(sink=2, recent=0.25),
    H2O(sink=1),
    TOVA(sink=2, recent=0.5),
]


@pytest.fixture(scope="module")
def numba_engine():
    pytest.importorskip("numba")
    from formerlab.cache import numba_engine

    return numba_engine


def tensors(batch, heads, key_heads, time, d_head, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, time, d_head), *[(batch, key_heads, time, d_head)] * 2]
    return [2 * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def prompt(policy, budget, lengths, q, k, v):
    return Prompt(q, k, v, [count(budget, n) for n in lengths], lengths)


def assert_engines_agree(left, right, lengths, exact=1e-12):
    """Compare two engines on the tokens of every sequence, without padding."""
    for row, length in enumerate(lengths):
        assert torch.allclose(left.out[row, :, :length], right.out[row, :, :length], atol=exact)
        retained = left.last_query[row, :, :length] >= length
        assert torch.equal(retained, right.last_query[row, :, :length] >= length)
        assert torch.equal(left.last_query[row, :, :length][~retained], right.last_query[row, :, :length][~retained])
        if length == left.out.shape[2]:
            assert torch.allclose(left.scores[row][retained], right.scores[row][retained], atol=exact)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_numba_engine_matches_torch(policy, numba_engine):
    for time, key_heads, d_head in ((1, 4, 16), (37, 4, 16), (64, 2, 5), (50, 1, 8)):
        lengths = [time, max(1, time - 13), max(1, time // 3)]
        q, k, v = tensors(3, 4, key_heads, time, d_head)
        for budget in (0.4, 3, 0.9):
            prompt_inputs = prompt(policy, budget, lengths, q, k, v)
            assert_engines_agree(
                numba_engine.run(policy, prompt_inputs), engines.run_in_torch(policy, prompt_inputs), lengths
            )


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_engines_match_the_masks(engine, numba_engine):
    """A simulation with an observer uses masks instead of an engine."""
    run = engines.run_in_torch if engine == "torch" else numba_engine.run
    q, k, v = tensors(2, 4, 2, 45, 8)
    for policy in [*POLICIES, *([KeyDiff()] if engine == "torch" else [])]:
        by_engine = Simulation(policy, 0.4, [45, 30], engine=run)
        by_mask = Simulation(policy, 0.4, [45, 30], observe=lambda layer, observed: None)
        assert torch.allclose(by_engine(1, q, k, v), by_mask(1, q, k, v), atol=1e-12), policy
        assert by_engine.realised_budget.tolist() == pytest.approx(by_mask.realised_budget.tolist()), policy


def test_ties_evict_the_older_key_in_every_engine(numba_engine):
    k = torch.zeros(1, 2, 40, 16)
    for run in (engines.run_in_torch, numba_engine.run):
        last_query = run(Decay(alpha=0.0), prompt(Decay(), 6, [40], k, k, k)).last_query
        assert last_query[0, 0].tolist() == [*range(6, 40), *[40] * 6], "the six most recent keys are retained"


def test_results_do_not_depend_on_threads(numba_engine):
    q, k, v = tensors(3, 4, 4, 70, 16, torch.float32)
    prompt_inputs = prompt(H2O(), 0.3, [70, 20, 50], q, k, v)
    alone = numba_engine.run(H2O(), prompt_inputs)
    torch.set_num_threads(3)
    together = numba_engine.run(H2O(), prompt_inputs)
    assert torch.equal(alone.out[0], together.out[0])
    assert torch.equal(alone.last_query, together.last_query)


def test_importing_the_engine_keeps_torchs_number_of_threads():
    pytest.importorskip("numba")
    program = "import torch; torch.set_num_threads(1); import formerlab.cache.numba_engine; "
    program += "print(torch.get_num_threads())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize("policy", [Decay(), KeyDiff(), Random()], ids=repr)
def test_threads_and_chunks_divide_the_sequences_in_torch(policy, monkeypatch):
    lengths = [70, 20, 50, 3, 64]
    prompt_inputs = prompt(policy, 0.3, lengths, *tensors(5, 4, 2, 70, 16))
    alone = engines.run_in_torch(policy, prompt_inputs)
    monkeypatch.setattr(engines, "MAX_LOGITS", 1)
    assert_engines_agree(alone, engines.run_in_torch(policy, prompt_inputs), lengths)
    torch.set_num_threads(3)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert_engines_agree(alone, engines.run_in_torch(policy, prompt_inputs), lengths)


@pytest.mark.parametrize(("free", "numbers"), [(80e9, 2**30), (8e9, 250_000_000), (1e6, engines.MAX_LOGITS)])
def test_chunks_on_a_gpu_fit_the_free_memory(free, numbers, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(80e9)))
    assert engines.chunk_size(torch.device("cuda")) == numbers
    assert engines.chunk_size(torch.device("cpu")) == engines.MAX_LOGITS


def test_on_rocm_pruned_attention_runs_in_torch(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setenv("CC", "cc")
    kernels.triton_usable.cache_clear()
    assert engines.load_triton() is None
    kernels.triton_usable.cache_clear()


@pytest.mark.parametrize("d_head", [16, 5])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_compiled_decoding_matches_torch(policy, d_head, numba_engine, monkeypatch):
    q, k, v = tensors(2, 4, 2, 40, d_head)
    tokens = [slice(token, token + 1) for token in range(40)]
    outs = []
    for threshold in (0, 10**9):
        monkeypatch.setattr(evicting, "COMPILE_THRESHOLD", threshold)
        cache = PrunedCache(policy, 9)
        outs.append(torch.cat([cache(0, q[:, :, token], k[:, :, token], v[:, :, token]) for token in tokens], 2))
        assert (cache._layers[0].step is not None) == (threshold == 0)
    assert torch.allclose(*outs, atol=1e-12)
    assert torch.allclose(outs[0], Simulation(policy, 9)(0, q, k, v), atol=1e-12)


@pytest.mark.parametrize(
    "policy", [policy() for policy in variants(CachePolicy) if issubclass(policy, Eviction)], ids=repr
)
def test_scores_match_the_declared_linear_rule(policy):
    decay, gain = policy.linear
    past, attention = 10 ** torch.empty(2, 1, 1, 999, dtype=torch.float64).uniform_(-6, 3)
    torch.testing.assert_close(policy.score(past, attention), decay * past + gain * attention, rtol=1e-12, atol=0)


class Clamped(Decay):
    """A policy whose score is linear below 10."""

    def score(self, past, attention):
        return super().score(past, attention).clamp(max=10)


class LargestHead(Decay):
    def reduce_over_heads(self, heads):
        return heads.amax(2)


class Squared(Decay):
    def rescore(self, state, attention, slot, initial):
        super().rescore(state, attention.square(), slot, initial)


class Newest(Decay):
    def eviction_priority(self, state, keys, query):
        return -state.positions.to(state.scores.dtype)


UNCOMPILED_RULES = [Clamped(alpha=1.0), LargestHead(), Squared(), Newest()]


@pytest.mark.parametrize("policy", UNCOMPILED_RULES, ids=repr)
def test_rules_without_compiled_support_run_in_torch(policy, numba_engine, monkeypatch):
    """Policies that override a rule run in torch, in simulation and in step-by-step decoding.

    The inherited `linear` does not describe the overridden rule.
    """
    q, k, v = tensors(2, 4, 2, 90, 16, torch.float32)
    prompt_inputs = prompt(policy, 30, [90, 90], q, k, v)
    monkeypatch.setattr(engines, "NUMBA_THRESHOLD", 0)
    monkeypatch.setattr(evicting, "COMPILE_THRESHOLD", 0)
    assert engines.choose_engine(Decay(), prompt_inputs) is numba_engine.run
    assert engines.choose_engine(policy, prompt_inputs) is engines.run_in_torch
    cache = PrunedCache(policy, 30)
    steps = [cache(0, *(x[:, :, token : token + 1] for x in (q, k, v))) for token in range(90)]
    torch.testing.assert_close(torch.cat(steps, 2), engines.run_in_torch(policy, prompt_inputs).out)


class EveryOther(H2O):
    """A policy whose own mask hides keys at odd positions."""

    def visible(self, layer):
        return super().visible(layer) & (torch.arange(layer.logits.shape[-1]) % 2 == 0)


def test_an_overridden_mask_is_used_in_simulation_and_refused_by_caches():
    q, k, v = tensors(2, 4, 2, 40, 16)
    observed = []
    with_observer = Simulation(EveryOther(), 9, observe=lambda layer, attention: observed.append(attention.visible))
    expected = with_observer(0, q, k, v)
    assert not (observed[0] & ~torch.eye(40, dtype=torch.bool))[..., 1::2].any()
    assert torch.equal(Simulation(EveryOther(), 9)(0, q, k, v), expected)
    assert not torch.allclose(Simulation(H2O(), 9)(0, q, k, v), expected)
    for cache in (PrunedCache, CompressedCache):
        with pytest.raises(UserError, match="run it as a Simulation"):
            cache(EveryOther(), 9)
    assert H2O().is_online
    assert Full().is_online
    assert not H2O(variant="local_statistics").is_online


def test_compression_needs_a_declared_score():
    class AddedFirst(Decay):
        @property
        def linear(self):
            return self.alpha, self.alpha

        def score(self, past, attention):
            return self.alpha * (past + attention)

    assert coefficients(AddedFirst(alpha=0.25)) == (0.25, 0.25)
    assert coefficients(Newest()) == (0.2, 1.0)
    for policy in UNCOMPILED_RULES[:3]:
        with pytest.raises(UserError, match="its score is not declared linear"):
            CompressedCache(policy, 6)


def test_only_large_inputs_use_numba(numba_engine, monkeypatch):
    q, k, v = tensors(2, 4, 4, 40, 16)
    prompt_inputs = prompt(Decay(), 0.4, [40, 40], q, k, v)
    assert engines.choose_engine(Decay(), prompt_inputs) is engines.run_in_torch
    monkeypatch.setattr(engines, "NUMBA_THRESHOLD", 2 * 4 * 40 * 16)
    assert engines.choose_engine(Decay(), prompt_inputs) is numba_engine.run
    # the score of KeyDiff is not a sum of attention
    assert engines.choose_engine(KeyDiff(), prompt_inputs) is engines.run_in_torch
    half = [x.bfloat16() for x in (q, k, v)]
    assert engines.choose_engine(Decay(), prompt(Decay(), 0.4, [40, 40], *half)) is engines.run_in_torch


def test_without_numba_the_torch_engine_runs_and_a_message_is_logged(monkeypatch, caplog):
    engines.load_numba.cache_clear()
    monkeypatch.setitem(sys.modules, "formerlab.cache.numba_engine", None)
    monkeypatch.delattr("formerlab.cache.numba_engine", raising=False)
    monkeypatch.setattr(engines, "NUMBA_THRESHOLD", 0)
    q, k, v = tensors(2, 4, 4, 40, 16)
    with caplog.at_level(logging.INFO, "formerlab.cache"):
        assert engines.choose_engine(Decay(), prompt(Decay(), 0.4, [40, 40], q, k, v)) is engines.run_in_torch
        assert "runs in torch" in caplog.text
    engines.load_numba.cache_clear()
