"""Rules other than accumulated attention, and the scope of scores, against references in plain Python."""

import math

import pytest
import torch

from formerlab.cache import H2O, TOVA, Decay, Ideal, KeyDiff, Knorm, Random, simulate

TIME = 18


def draw(*shape, seed=0):
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visible_to_queries(policy, logits, budget, **inputs):
    """Return the sets of keys that queries see: [row][head][q]."""
    _, visible = simulate(policy, logits, budget, **inputs)
    return [[[set(q.nonzero().flatten().tolist()) for q in head] for head in row] for row in visible]


@pytest.mark.parametrize("budget", [1, 4, 9])
def test_tova_scores_are_the_last_row_summed_over_heads(budget, oracle):
    logits = draw(2, 4, TIME, TIME)
    visible_keys = visible_to_queries(TOVA(), logits, budget, groups=2)
    for row in range(2):
        expected = oracle.evict(logits[row].tolist(), alpha=0.0, budget=budget, recent=1, sink=0)
        assert visible_keys[row] == [expected] * 4


@pytest.mark.parametrize("policy", [Decay(alpha=0.5), H2O()], ids=repr)
def test_scope_layer_retains_the_same_keys_in_all_heads(policy, oracle):
    logits = draw(2, 4, TIME, TIME)
    alpha, recent = (0.5, 0) if isinstance(policy, Decay) else (1.0, 3)
    for scope, size in (("group", 2), ("layer", 4)):
        visible_keys = visible_to_queries(type(policy)(**{**policy.model_dump(), "scope": scope}), logits, 6, groups=2)
        for row in range(2):
            for head in range(0, 4, size):
                heads = logits[row, head : head + size].tolist()
                expected = oracle.evict(heads, alpha=alpha, budget=6, recent=recent, sink=0)
                assert visible_keys[row][head : head + size] == [expected] * size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("policy", [Knorm(), KeyDiff()], ids=repr)
def test_half_precision_keys_give_the_scores_of_float32(policy, dtype):
    keys, logits = draw(2, 2, 200, 16).to(dtype), draw(2, 2, 200, 200).float()
    actual, expected = (simulate(policy, logits, 50, keys=keys_of_dtype)[1] for keys_of_dtype in (keys, keys.float()))
    assert torch.equal(actual, expected)


def check_evictions(policy, worst):
    """Check that `policy` evicts the key that `worst(keys, positions)` returns, if a head has more than 5 keys."""
    keys = draw(2, 2, TIME, 3)
    visible_keys = visible_to_queries(policy, draw(2, 4, TIME, TIME), 5, keys=keys, groups=2)
    for row in range(2):
        for head in range(4):
            retained = set()
            for q in range(TIME):
                retained.add(q)
                assert visible_keys[row][head][q] == retained
                if len(retained) > 5:
                    retained.remove(worst(keys[row, head // 2].tolist(), retained))


def test_knorm_evicts_the_longest_key():
    check_evictions(Knorm(), lambda keys, retained: max(retained, key=lambda k: math.hypot(*keys[k])))


def test_keydiff_evicts_the_key_most_similar_to_the_others():
    def most_alike(keys, retained):
        units = {k: [x / math.hypot(*keys[k]) for x in keys[k]] for k in retained}
        mean = [sum(unit[i] for unit in units.values()) for i in range(3)]
        return max(retained, key=lambda k: sum(a * b for a, b in zip(units[k], mean, strict=True)))

    check_evictions(KeyDiff(), most_alike)


def test_ideal_sees_the_largest_probabilities_of_every_row():
    logits = draw(2, 4, TIME, TIME)
    visible_keys = visible_to_queries(Ideal(), logits, 5, lengths=[TIME, 11])
    for row, length in enumerate((TIME, 11)):
        for head in range(4):
            for q in range(length):
                best = sorted(range(q), key=lambda k: -logits[row, head, q, k].item())[:5]
                assert visible_keys[row][head][q] == {*best, q}


class TestRandom:
    """Priorities that are sampled once per key retain a uniform sample of all earlier keys."""

    def visible_keys(self, policy, budget=4, time=400, heads=3, layer=0):
        logits = torch.zeros(2, heads, time, time)
        return simulate(policy, logits, budget, layer=layer)[1]

    def test_the_largest_draws_are_retained(self):
        policy, visible = Random(seed=5), self.visible_keys(Random(seed=5), time=60)
        draws = policy.initial_scores(torch.arange(60), 3, None, 0)[0]
        assert len(draws.unique()) == draws.numel()
        assert draws.min() >= 0
        assert draws.max() < 1
        for head in range(3):
            for q in range(60):
                best = draws[head, :q].topk(min(4, q)).indices.tolist()
                assert set(visible[0, head, q].nonzero().flatten().tolist()) == {*best, q}

    def test_draws_are_uniform_and_uncorrelated(self):
        draws = Random().initial_scores(torch.arange(4000), 8, None, 3)[0].double()
        assert draws.mean().item() == pytest.approx(0.5, abs=0.01)
        assert draws.var().item() == pytest.approx(1 / 12, abs=0.003)
        rows = [
            draws,
            Random(seed=1).initial_scores(torch.arange(4000), 8, None, 3)[0],
            Random().initial_scores(torch.arange(4000), 8, None, 4)[0],
        ]
        together = torch.cat([*rows, draws.roll(1, -1)]).double()
        off_diagonal = torch.corrcoef(together) - torch.eye(32)
        assert off_diagonal.abs().max() < 0.08

    def test_draws_depend_on_seed_layer_and_head_only(self):
        visible = self.visible_keys(Random())
        assert torch.equal(visible[0], visible[1])
        assert not torch.equal(visible[:, 0], visible[:, 1])
        assert not torch.equal(visible, self.visible_keys(Random(seed=1)))
        assert not torch.equal(visible, self.visible_keys(Random(), layer=1))
