"""Examples of the algorithms that were computed by hand: traces, retained keys, and scores to six digits."""

import pytest
import torch

from formerlab.cache import H2O, Decay, Full, Local, SpAtten, StreamingLLM, simulate
from formerlab.cache.eviction import Eviction
from formerlab.cache.policies.policy import LayerInputs, by_group
from formerlab.kernels import EMPTY_POSITION

TRACES = {
    "decay_a0.5_B2_recent0": Decay(alpha=0.5),
    "h2o_noLocal_a1_B2_recent0": H2O(recent=0.0),
    "a2sfstyle_h2o_a1_heavy1_recent1": H2O(),
    "decay_a0.5_heavy1_recent1": Decay(alpha=0.5, recent=0.5),
    "tova_like_a0_B2": Decay(alpha=0.0),
}


def slot_states(policy: Eviction, layer):
    """Return the positions and scores of the slots at every query, before the query evicts a key."""
    states = []

    class RecordingPolicy(type(policy)):
        def eviction_priority(self, state, keys, query):
            states.append((state.positions.clone(), state.scores.clone()))
            return super().eviction_priority(state, keys, query)

    RecordingPolicy(**policy.model_dump()).visible(layer)
    return states


def steps(policy, logits, budget):
    """Return {position: score} of the keys that each query sees, before the query evicts a key."""
    states, (batch, _, time, _) = [], logits.shape
    for positions, scores in slot_states(policy, LayerInputs(by_group(logits, 1), [budget] * batch, [time] * batch)):
        filled = positions[0, 0] != EMPTY_POSITION
        states.append(dict(zip(positions[0, 0][filled].tolist(), scores[0, 0][filled].tolist(), strict=True)))
    return states


def visible_positions(policy, logits, budget, **inputs):
    _, visible = simulate(policy, logits, budget, **inputs)
    return [row.nonzero().flatten().tolist() for row in visible[0, 0]]


def check_trace(policy, trace, values, logits, budget):
    probabilities, _ = simulate(policy, logits, budget)
    states = steps(policy, logits, budget)
    out = probabilities[0, 0] @ torch.tensor(values, dtype=torch.float64)
    for q, row in enumerate(trace):
        assert sorted(states[q]) == row["attended"]
        assert states[q] == pytest.approx({int(k): s for k, s in row["score"].items()}, abs=1e-6)
        for k in range(5):
            assert probabilities[0, 0, q, k].item() == pytest.approx(row["p"].get(str(k), 0.0), abs=1e-6)
        assert out[q].item() == pytest.approx(row["out"], abs=1e-6)
        if q + 1 < len(trace):
            assert sorted(set(states[q + 1]) - {q + 1}) == row["cache"]
            assert set(states[q]) - set(states[q + 1]) == {row["evict"]} - {None}


@pytest.mark.parametrize("name", TRACES)
def test_hand_trace(name, vectors, hand_logits):
    check_trace(TRACES[name], vectors["hand"][name], vectors["hand"]["values"], hand_logits, 2)


def test_hand_trace_without_pruning(vectors, hand_logits):
    check_trace(H2O(), vectors["hand"]["full"], vectors["hand"]["values"], hand_logits, 5)
    assert visible_positions(Full(), hand_logits, 2) == [row["attended"] for row in vectors["hand"]["full"]]


@pytest.mark.parametrize(("name", "alpha"), [("alpha1", 1.0), ("alpha0.5", 0.5), ("alpha0.2", 0.2), ("alpha0.0", 0.0)])
def test_scores_without_eviction_have_the_closed_form(name, alpha, vectors, hand_logits):
    expected = vectors["hand"][f"oneshot_prefill_{name}"]
    final = steps(Decay(alpha=alpha), hand_logits, 5)[-1]
    assert [final[k] for k in range(5)] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "policy", "budget"),
    [
        ("h2o_official_local_heavy2_recent0", H2O(recent=0.0, variant="local_statistics"), 2),
        ("h2o_official_local_heavy1_recent1", H2O(variant="local_statistics"), 2),
        ("h2o_official_local_heavy2_recent1", H2O(recent=0.4, variant="local_statistics"), 3),
        ("h2o_official_global_heavy2_recent0", H2O(recent=0.0, variant="global_statistics"), 2),
        ("h2o_official_global_heavy1_recent1", H2O(variant="global_statistics"), 2),
        ("h2o_official_global_heavy2_recent1", H2O(recent=0.4, variant="global_statistics"), 3),
        ("local_B2_plus_self", Local(), 2),
        ("streaming_sink1_recent1_plus_self", StreamingLLM(sink=1), 2),
    ],
)
def test_hand_computed_retained_sets(name, policy, budget, vectors, hand_logits):
    assert visible_positions(policy, hand_logits, budget) == vectors["hand"][name]


def test_spatten_passes_the_largest_column_sums_to_the_next_layer(hand_logits):
    state = {}
    assert visible_positions(SpAtten(), hand_logits, 2, state=state) == [list(range(q + 1)) for q in range(5)]
    assert state["score"][0].tolist() == pytest.approx([1.724242, 1.39697, 0.840909, 0.787879, 0.25], abs=1e-6)
    assert visible_positions(SpAtten(), hand_logits, 2, state=state) == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4]]
