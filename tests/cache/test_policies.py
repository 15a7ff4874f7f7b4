"""Properties of every policy in `CachePolicy` that masks or evicts keys at each step.

The rules are compared with a reference in plain Python. Policies that wrap another policy are tested in
test_allocation.py, and one-shot policies in test_compressed.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from test_worked_examples import slot_states

from formerlab.cache import (
    H2O,
    CachePolicy,
    Decay,
    Full,
    Ideal,
    KeyDiff,
    Local,
    SpAtten,
    StreamingLLM,
    resolve_budget,
    simulate,
)
from formerlab.cache.eviction import Eviction
from formerlab.cache.policies.policy import LayerInputs, OneShot
from formerlab.spec import variants

OFFICIAL = [H2O(variant="local_statistics"), H2O(variant="global_statistics")]
VARIANTS = [variant() for variant in variants(CachePolicy) if "policy" not in variant.model_fields]
POLICIES = [policy for policy in VARIANTS if not isinstance(policy, OneShot)]
EXACT = [policy for policy in POLICIES if isinstance(policy, Eviction) and not isinstance(policy, Full)]


def random_logits(batch=2, heads=4, time=12, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(batch, heads, time, time, generator=generator, dtype=dtype)


def keys_of(logits, groups=1):
    """Return keys (batch, key heads, time, 3) computed from the logits.

    Permuting or slicing the logits therefore also permutes or slices the keys.
    """
    first = logits[:, ::groups, :, 0]
    return torch.stack([first, first.square() - 1, (5 * first).cos()], -1)


def run(policy, logits, budget, groups=1, **inputs):
    return simulate(policy, logits, budget, groups=groups, keys=keys_of(logits, groups), **inputs)


def layers(policy, logits, budget, **inputs):
    """Run two layers, so that state passes between layers, and return the result of the second layer."""
    state = {}
    run(policy, logits.roll(1, 1), budget, state=state, **inputs)
    return run(policy, logits, budget, state=state, **inputs)


def full_attention(logits):
    mask = torch.ones(logits.shape[-1], logits.shape[-1], dtype=torch.bool).tril()
    return logits.masked_fill(~mask, -torch.inf).softmax(-1)


def test_cache_policy_parses_every_policy_from_its_kind():
    assert len({policy.kind for policy in VARIANTS}) == len(VARIANTS) >= 13
    adapter = TypeAdapter(CachePolicy)
    for policy in VARIANTS + OFFICIAL:
        assert adapter.validate_python(policy.to_dict()) == policy
    with pytest.raises(ValidationError, match="'full', 'local', 'streaming_llm', 'h2o', 'spatten', 'decay'"):
        adapter.validate_python({"kind": "h20"})
    with pytest.raises(ValidationError):
        Decay(alpha=1.1)
    with pytest.raises(ValidationError):
        Local(sink=1)


@pytest.mark.parametrize("budget", [1.0, 12, 13, 1000])
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_an_unlimited_budget_is_bit_identical_to_full_attention(policy, budget):
    logits = random_logits()
    probabilities, visible = layers(policy, logits, budget)
    assert torch.equal(probabilities, full_attention(logits))
    assert torch.equal(visible[0, 0], torch.ones(12, 12).tril().bool())


@pytest.mark.parametrize("policy", POLICIES + OFFICIAL, ids=repr)
def test_properties_of_every_simulation(policy):
    logits = random_logits()
    probabilities, visible = layers(policy, logits, 5)
    assert probabilities.shape == visible.shape == logits.shape
    assert not visible.triu(1).any(), "no query sees the future"
    assert visible.diagonal(dim1=-1, dim2=-2).all(), "every query sees itself"
    assert torch.equal(probabilities > 0, visible)
    assert probabilities.sum(-1) == pytest.approx(1.0)
    expected = full_attention(logits) * visible
    assert torch.allclose(probabilities, expected / expected.sum(-1, keepdim=True), atol=1e-14)


@pytest.mark.parametrize("policy", [*EXACT, H2O(recent=0.0), Decay(sink=2, recent=0.3)], ids=repr)
def test_the_budget_is_exact_and_evicted_keys_never_return(policy):
    for budget in (1, 2, 5, 11):
        if budget < policy.sink:
            continue
        _, visible = run(policy, random_logits(), budget)
        counts = torch.arange(1, 13).clamp(max=budget + 1)
        assert torch.equal(visible.sum(-1), counts.expand(2, 4, -1))
        earlier, later = visible[:, :, :-1], visible[:, :, 1:]
        assert not (later & ~earlier).tril(0).any(), "an evicted key never reappears"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    time=st.integers(1, 14),
    groups=st.sampled_from([1, 2, 4]),
    budget=st.one_of(st.integers(1, 15), st.floats(0.05, 1.0)),
    alpha=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    recent=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    sink=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_eviction_matches_the_plain_python_reference(oracle, time, groups, budget, alpha, recent, sink, seed):
    logits = random_logits(2, 4, time, seed)
    lengths = [time, max(1, time - 3)]
    policy = Decay(alpha=alpha, recent=recent, sink=min(sink, budget) if isinstance(budget, int) else sink)
    _, visible = simulate(policy, logits, budget, groups=groups, lengths=lengths)
    for row, length in enumerate(lengths):
        total = resolve_budget(budget, length)
        first, last = policy.protected(total)
        for start in range(0, 4, groups):
            heads = [logits[row, head, :length, :length].tolist() for head in range(start, start + groups)]
            expected = oracle.evict(heads, alpha=alpha, budget=total, recent=last, sink=first)
            for head in range(start, start + groups):
                assert [set(line.nonzero().flatten().tolist()) for line in visible[row, head, :length]] == expected


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    time=st.integers(1, 14),
    budget=st.one_of(st.integers(1, 15), st.floats(0.05, 1.0)),
    recent=st.sampled_from([0.0, 0.3, 0.5]),
    seed=st.integers(0, 1000),
)
def test_official_h2o_matches_the_plain_python_reference(oracle, time, budget, recent, seed):
    logits, lengths = random_logits(2, 2, time, seed), [time, max(1, time - 3)]
    for variant, reference in (
        ("local_statistics", oracle.official_local),
        ("global_statistics", oracle.official_global),
    ):
        _, visible = simulate(H2O(recent=recent, variant=variant), logits, budget, lengths=lengths)
        for row, length in enumerate(lengths):
            total = resolve_budget(budget, length)
            window = int(recent * total + 1e-9)
            for head in range(2):
                expected = reference(logits[row, head, :length, :length].tolist(), heavy=total - window, recent=window)
                assert [set(line.nonzero().flatten().tolist()) for line in visible[row, head, :length]] == expected


@pytest.mark.parametrize("budgets", [(8, 6, 3, 1), (6, 6, 6, 6), (0.8, 0.5, 0.2, 0.1)])
def test_spatten_matches_the_plain_python_reference(oracle, budgets):
    state, lengths = {}, [12, 8]
    # layers prefer different keys, so that the sum over layers and the last layer give different results
    stack = [random_logits(seed=seed) + 3 * random_logits(seed=seed + 9)[:, :, :1] for seed in range(4)]
    results = [
        simulate(SpAtten(), logits, budget, lengths=lengths, state=state)[1]
        for logits, budget in zip(stack, budgets, strict=True)
    ]
    for row, length in enumerate(lengths):
        rows = [logits[row, :, :length, :length].tolist() for logits in stack]
        expected_by_layer = oracle.cascade(rows, budget=[resolve_budget(budget, length) for budget in budgets])
        for visible, expected in zip(results, expected_by_layer, strict=True):
            assert [set(line.nonzero().flatten().tolist()) for line in visible[row, 1, :length]] == expected


def test_policies_with_equal_rules_retain_equal_keys():
    logits = random_logits()
    for budget in (3, 4, 7, 0.4):
        for policy, equal_policy in (
            (Decay(recent=1.0), Local()),
            (Decay(recent=1.0, sink=3), StreamingLLM(sink=3)),
            (H2O(recent=1.0), Local()),
            (Decay(alpha=1.0, recent=0.5), H2O()),
        ):
            assert torch.equal(*(simulate(each, logits, budget)[1] for each in (policy, equal_policy)))


CAUSAL = [*[policy for policy in POLICIES if policy.is_online], OFFICIAL[0], Ideal()]


@pytest.mark.parametrize("policy", CAUSAL, ids=repr)
def test_later_tokens_do_not_change_earlier_outputs(policy):
    logits = random_logits()
    probabilities, visible = run(policy, logits, 4)
    shorter, shorter_visible = run(policy, logits[..., :9, :9], 4)
    assert torch.equal(visible[..., :9, :9], shorter_visible)
    assert torch.equal(probabilities[..., :9, :9], shorter)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES + OFFICIAL if policy not in CAUSAL], ids=repr)
def test_policies_that_are_not_causal_use_later_tokens(policy):
    logits = random_logits()
    _, visible = layers(policy, logits, 4)
    _, shorter = layers(policy, logits[..., :9, :9], 4)
    assert not torch.equal(visible[..., :9, :9], shorter)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("policy", POLICIES + OFFICIAL, ids=repr)
def test_padding_and_batch_order_have_no_effect(policy, groups):
    lengths = [12, 7, 9, 1]
    logits = random_logits(batch=4)
    for row, length in enumerate(lengths):
        logits[row, :, length:] = torch.nan
        logits[row, :, :, length:] = torch.nan
    probabilities, visible = layers(policy, logits, 0.4, lengths=lengths, groups=groups)
    order = [2, 0, 3, 1]
    permuted, _ = layers(policy, logits[order], 0.4, lengths=torch.tensor(lengths)[order], groups=groups)
    assert torch.equal(permuted, probabilities[order])
    for row, length in enumerate(lengths):
        alone, alone_visible = layers(policy, logits[row : row + 1, :, :length, :length], 0.4, groups=groups)
        assert torch.equal(visible[row, :, :length, :length], alone_visible[0])
        assert torch.allclose(probabilities[row, :, :length, :length], alone[0], atol=1e-14)
        assert not visible[row, :, length:].any()
        assert not visible[row, :, :, length:].any()
        assert not probabilities[row, :, length:].any()


@pytest.mark.parametrize("policy", POLICIES + OFFICIAL, ids=repr)
def test_query_heads_of_a_key_value_head_retain_the_same_keys(policy):
    logits = random_logits()
    _, visible = layers(policy, logits, 4, groups=2)
    assert torch.equal(visible[:, 0::2], visible[:, 1::2])
    twins = logits[:, ::2].repeat_interleave(2, 1)
    _, grouped = layers(policy, twins, 4, groups=2)
    _, single = layers(policy, logits[:, ::2], 4)
    assert torch.equal(grouped[:, ::2], single), "two equal query heads retain the same keys as a single head"


def test_scores_of_half_precision_logits_are_summed_in_float32():
    """In bfloat16, a running sum would stop growing at about 256 times the addend."""
    layer = LayerInputs(torch.zeros(1, 1, 1, 300, 300, dtype=torch.bfloat16), [300], [300])
    _, scores = slot_states(H2O(), layer)[-1]
    assert scores.dtype == torch.float32
    assert scores[0, 0, 0].item() == pytest.approx(sum(1 / n for n in range(1, 301)), rel=1e-5)
    logits = random_logits(dtype=torch.bfloat16)
    probabilities, visible = simulate(Decay(), logits, 4)
    assert probabilities.dtype == torch.bfloat16
    assert torch.equal(visible, simulate(Decay(), logits.float(), 4)[1])


def test_missing_policy_inputs_are_refused():
    for policy, message in ((KeyDiff(), "KeyDiff needs keys"), (SpAtten(), "SpAtten needs state")):
        with pytest.raises(ValueError, match=message):
            simulate(policy, random_logits(), 3)


def test_gradients_flow_only_to_visible_keys():
    logits = random_logits().requires_grad_()
    probabilities, visible = simulate(Decay(), logits, 4)
    probabilities.square().sum().backward()
    assert torch.equal(logits.grad != 0, visible & (visible.sum(-1, keepdim=True) > 1))
