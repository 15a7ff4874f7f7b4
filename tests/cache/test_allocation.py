"""Budgets of layers and heads, and retention of whole blocks, compared with references in plain Python."""

import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from test_caches import TIME, Toy, feed
from test_compressed import attention, tensors

from formerlab.cache import (
    H2O,
    CachePolicy,
    Chunks,
    CompressedCache,
    Decay,
    HeadAdaptive,
    KeyDiff,
    Knorm,
    PrunedCache,
    Pyramid,
    Random,
    Simulation,
    SnapKV,
    resolve_budget,
    simulate,
)
from formerlab.cache.one_shot import importance_of
from formerlab.cache.policies.policy import Prompt
from formerlab.commands.huggingface import policy_fields
from formerlab.errors import UserError
from formerlab.evaluation.pruning.windows import policy_name
from tests.cache.conftest import softmax


def adaptive_reference(logits, groups, alpha, budget, safe, sink, recent):
    """Return the keys that each query of each key-value head sees; logits [head][query][key] of one sequence."""
    key_heads = len(logits) // groups
    scores, visible_keys = [{} for _ in range(key_heads)], [[] for _ in range(key_heads)]
    for query in range(len(logits[0])):
        for head, retained in enumerate(scores):
            retained[query] = 0.0
            visible_keys[head].append(set(retained))
            rows = [
                softmax({key: logits[head * groups + member][query][key] for key in retained})
                for member in range(groups)
            ]
            for key in retained:
                retained[key] = alpha * retained[key] + sum(row[key] for row in rows)
        while sum(map(len, scores)) > budget * key_heads:
            free = [
                (retained[key], key, head)
                for head, retained in enumerate(scores)
                for key in retained
                if len(retained) > safe and sink <= key <= query - recent
            ]
            _, key, head = min(free)
            del scores[head][key]
    return visible_keys


@pytest.mark.parametrize(("safeguard", "safe"), [(0.0, 0), (0.2, 1), (0.75, 6), (1.0, 8)])
@pytest.mark.parametrize(("sink", "recent", "last"), [(0, 0.0, 0), (2, 0.25, 2)])
def test_adaptive_eviction_matches_the_reference(safeguard, safe, sink, recent, last):
    policy = HeadAdaptive(policy=Decay(alpha=0.5, sink=sink, recent=recent), safeguard=safeguard)
    logits = torch.randn(1, 6, 30, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits *= torch.tensor([0.3, 0.3, 2, 2, 5, 5])[:, None, None]  # heads with attention of different entropy
    _, visible = simulate(policy, logits, 8, groups=2)
    expected = adaptive_reference(logits[0].tolist(), 2, 0.5, 8, safe, sink, last)
    assert [[set(row.nonzero().flatten().tolist()) for row in head] for head in visible[0, ::2]] == expected
    assert visible[0, ::2, -1].sum() == 3 * 9
    per_head = visible[0, ::2, -1].sum(-1)
    # heads must retain different numbers of keys, otherwise the test is vacuous
    assert (len(set(per_head.tolist())) > 1) == (safeguard < 1)


@pytest.mark.parametrize("scoring", [H2O(), KeyDiff(), Knorm(), Random(sink=2)], ids=repr)
def test_a_safeguard_of_1_gives_the_keys_of_the_inner_policy(scoring):
    q, k, _ = tensors()
    logits = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 2
    alone, adaptive = (
        simulate(policy, logits, 0.4, groups=2, keys=k, lengths=[30, 21])[1]
        for policy in (scoring, HeadAdaptive(policy=scoring, safeguard=1.0))
    )
    assert torch.equal(alone, adaptive)


def test_the_measured_cache_size_of_adaptive_heads_equals_the_budget():
    simulation, tokens = Simulation(HeadAdaptive(policy=H2O(), safeguard=0.0), 0.4), torch.arange(TIME)[None] % 11
    Toy(4, rotary=False)(tokens, attend=simulation)
    assert simulation.realised_budget.tolist() == pytest.approx([resolve_budget(0.4, TIME) / TIME])
    q, k, v = tensors(time=20)
    k[:, 1] *= 1000  # Knorm evicts the long keys of head 1, so head 0 retains all of its keys
    simulation = Simulation(HeadAdaptive(policy=Knorm(), safeguard=0.0), 10)
    simulation(0, q, k, v)
    assert simulation.realised_budget.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("safeguard", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("scoring", [SnapKV(window=3, kernel=1), H2O(), Knorm(sink=2)], ids=repr)
def test_adaptive_compression_retains_the_largest_scores_of_a_layer(scoring, safeguard):
    q, k, v = tensors(time=30)
    count, prompt = 8, Prompt(*(x[:, :, :20] for x in (q, k, v)), [8] * 2, [20] * 2)
    cache = CompressedCache(HeadAdaptive(policy=scoring, safeguard=safeguard), 0.4)
    cache(0, prompt.q, prompt.k, prompt.v)
    sink, recent = scoring.protected(count)
    scores = importance_of(scoring, prompt, None).clone()
    scores[..., :sink] = scores[..., 20 - recent :] = math.inf
    expected = []
    for row in scores.tolist():
        ranked = [sorted(range(20), key=lambda key, head=head: (-head[key], -key)) for head in row]
        safe = {(head, key) for head, keys in enumerate(ranked) for key in keys[: int(safeguard * count)]}
        candidates = {(head, key) for head in (0, 1) for key in range(20)} - safe
        best = sorted(candidates, key=lambda pair: -row[pair[0]][pair[1]])[: 2 * count - len(safe)]
        expected.append([sorted(key for owner, key in {*safe, *best} if owner == head) for head in (0, 1)])
    retained = [[[key for key in keys if key < 20] for keys in row] for row in cache.kept(0).tolist()]
    assert retained == expected
    later = torch.cat([cache(0, *(x[:, :, a:b] for x in (q, k, v))) for a, b in ((20, 21), (21, 28), (28, 30))], 2)
    mask = torch.zeros(2, 4, 30, 30, dtype=torch.bool)
    mask[:, :, 20:, 20:] = torch.ones(10, 10).tril().bool()
    for row in range(2):
        for head in range(4):
            mask[row, head, 20:, retained[row][head // 2]] = True
    logits = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 2
    masked = logits.masked_fill(~mask, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    assert torch.allclose(later, masked[:, :, 20:], atol=1e-12)
    alone = CompressedCache(scoring, 0.4)
    for a, b in ((0, 20), (20, 30)):
        alone(0, *(x[:, :, a:b] for x in (q, k, v)))
    assert cache.bytes() == alone.bytes()
    cache.reorder(torch.tensor([1, 0]))
    assert cache.kept(0)[0].tolist()[0][:3] == expected[1][0][:3]


def test_blocks_are_retained_together_by_their_mean_score():
    q, k, v = tensors(time=30)
    cache = CompressedCache(Chunks(policy=H2O(recent=0.0), size=4), 8)
    cache(0, q, k, v)
    sums = attention(q, k).sum(2).unflatten(1, (2, 2)).sum(2)
    for row in range(2):
        for head in range(2):
            blocks = [range(start, min(start + 4, 30)) for start in range(0, 30, 4)]
            means = [sum(sums[row, head, key].item() for key in block) / len(block) for block in blocks]
            ranked = sorted(range(len(blocks)), key=lambda block: -means[block])
            in_order = [key for block in ranked for key in reversed(blocks[block])]
            assert cache.kept(0)[row, head].tolist() == sorted(in_order[:8])


def test_pyramid_budgets_fall_linearly_and_keep_the_total():
    policy = Pyramid(policy=H2O(), layers=5, last=0.2)
    assert [policy.layer_budget(100, layer) for layer in range(5)] == [180, 140, 100, 60, 20]
    for budget in range(20, 60):
        counts = [Pyramid(policy=H2O(), layers=30).layer_budget(budget, layer) for layer in range(30)]
        assert sum(counts) == 30 * budget
        assert all(abs(count - budget * (1.95 - 1.9 * layer / 29)) <= 1 for layer, count in enumerate(counts))
    assert Pyramid(policy=H2O(), layers=1).layer_budget(7, 0) == 7


@pytest.mark.parametrize("scoring", [H2O(), Decay(sink=1, recent=0.5), Knorm(), Random()], ids=repr)
def test_a_pyramid_evicts_as_simulated_in_each_layer(scoring):
    tokens, model = torch.arange(2 * TIME).view(2, TIME) % 11, Toy(2, rotary=True)
    policy = Pyramid(policy=scoring, layers=2, last=0.5)
    cache, masks = PrunedCache(policy, 6), {}
    _ = model(
        tokens, attend=Simulation(policy, 6, observe=lambda layer, observed: masks.update({layer: observed.visible}))
    )
    expected = model(tokens, attend=Simulation(policy, 6))
    assert (feed(model, tokens, cache) - expected).abs().max() < 1e-10
    assert [cache.kept(layer).shape[-1] for layer in (0, 1)] == [9, 3]
    assert [masks[layer][0, 0, -1].sum().item() for layer in (0, 1)] == [10, 4]
    # the last eviction retains three of the four keys that the last query sees
    assert masks[1][0, 0, -1, cache.kept(1)[0, 0]].sum() == 3


@pytest.mark.parametrize("make", [PrunedCache, CompressedCache])
def test_a_pyramid_uses_as_many_bytes_as_equal_layer_budgets(make):
    tokens, model = torch.arange(2 * TIME).view(2, TIME) % 11, Toy(2, rotary=True)
    even, pyramid = make(H2O(), 4), make(Pyramid(policy=H2O(), layers=2, last=0.5), 4)
    for cache in (even, pyramid):
        feed(model, tokens, cache)
    assert pyramid.bytes() == even.bytes()
    if make is PrunedCache:
        assert [pyramid.kept(layer).shape[-1] for layer in (0, 1)] == [6, 2]


def test_an_adaptive_pyramid_divides_the_budget_among_layers_and_heads():
    cache, (q, k, v) = CompressedCache(Pyramid(policy=HeadAdaptive(policy=H2O()), layers=2, last=0.5), 8), tensors()
    for layer in (0, 1):
        cache(layer, q, k, v)
    retained = [(cache.kept(layer) < 30).sum((1, 2)).tolist() for layer in (0, 1)]
    assert retained == [[24, 24], [8, 8]]


@pytest.mark.parametrize(
    "policy",
    [
        HeadAdaptive(policy=Decay(alpha=0.5), safeguard=0.5),
        Pyramid(policy=HeadAdaptive(policy=SnapKV(window=32)), layers=30),
        Chunks(policy=KeyDiff(sink=4), size=20),
    ],
    ids=repr,
)
def test_policies_are_parsed_from_specs_and_text(policy):
    read = TypeAdapter(CachePolicy).validate_python
    assert read(policy.to_dict()) == policy
    text = policy_name(policy).replace("decay", "decay alpha=0.5")
    assert read(policy_fields(text)) == policy


def test_mistakes_give_a_one_line_error():
    q, k, v = tensors()
    for wrong in (Decay(protect="prompt"), H2O(variant="local_statistics")):
        for wrapped in (HeadAdaptive, Chunks):
            with pytest.raises(ValidationError, match="policy="):
                wrapped(policy=wrong)
        with pytest.raises(ValidationError, match="policy="):
            Pyramid(policy=wrong, layers=2)
    with pytest.raises(UserError, match=r"HeadAdaptive.*run it as a Simulation or as a CompressedCache"):
        PrunedCache(HeadAdaptive(policy=H2O()), 8)
    with pytest.raises(UserError, match="budget 8: the budget of layer 29 is below one key"):
        PrunedCache(Pyramid(policy=H2O(), layers=30), 8)
    with pytest.raises(UserError, match="the model has more than 2 layers"):
        PrunedCache(Pyramid(policy=H2O(), layers=2), 30)(2, q, k, v)
    with pytest.raises(UserError, match=r"budget 3: Decay retains the first 4 tokens \(sink\)"):
        Simulation(Pyramid(policy=Decay(sink=4), layers=2, last=0.5), 6)
