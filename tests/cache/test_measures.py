"""Positions of retained keys, and the distance to the ideal policy."""

import pytest
import torch
from test_policies import random_logits

from formerlab.cache import H2O, Decay, Full, Local, StreamingLLM, distance_to_ideal, ideal_attention, simulate
from formerlab.cache.measures import retention_measures


def test_early_share_without_pruning_is_uniform():
    for time in (2, 3, 7, 20):
        _, visible = simulate(Full(), random_logits(time=time), 1.0)
        actual = {name: value.tolist() for name, value in retention_measures(visible).items()}
        even = {"early_share": 0.4, "early_share_10": 0.1, "mean_position": 0.5, "recent_share": 0.4}
        assert actual == {name: pytest.approx([value] * 2, abs=1e-12) for name, value in even.items()}


def test_early_share_counts_straddling_positions_fractionally():
    visible = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    # the first 40 % of 3 earlier positions are 1.2 positions, so position 1 has weight 0.2
    visible[0, 0, 3, [1, 2, 3]] = True
    visible[0, 0, 2, 2] = True  # the query retains no earlier key, so it is not counted
    visible[0, 0, 1, [0, 1]] = True  # queries in the first half are not counted
    assert retention_measures(visible)["early_share"].item() == pytest.approx(0.1)


def ideal(full, budget):
    """Return the ideal attention row by row: the `budget` best earlier keys and the query's own key."""
    rows = torch.zeros_like(full)
    for b, h, q in torch.cartesian_prod(*(torch.arange(size) for size in full.shape[:3])).tolist():
        best = sorted(range(q), key=lambda k: -full[b, h, q, k].item())[:budget]
        for k in [*best, q]:
            rows[b, h, q, k] = full[b, h, q, k]
    return rows


def test_the_ideal_has_distance_zero_and_policies_have_a_positive_distance():
    logits = random_logits(time=20)
    full, _ = simulate(Full(), logits, 1.0)
    best = ideal(full, 5)
    assert distance_to_ideal(best / best.sum(-1, keepdim=True), ideal_attention(full, 5)).max() < 1e-12
    for policy in (Local(), Decay(), H2O()):
        pruned, _ = simulate(policy, logits, 5)
        cosine = torch.nn.functional.cosine_similarity(pruned, best, dim=-1)
        assert distance_to_ideal(pruned, ideal_attention(full, 5)).tolist() == pytest.approx(
            (1 - cosine).mean((1, 2)).tolist()
        )
        assert distance_to_ideal(pruned, ideal_attention(full, 5)).min() > 1e-3


def test_a_dominant_sink_hides_other_differences():
    logits = random_logits(time=20)
    logits[..., 0] += 12
    full, _ = simulate(Full(), logits, 1.0)
    pruned, _ = simulate(StreamingLLM(sink=1), logits, 4)
    assert distance_to_ideal(pruned, ideal_attention(full, 4)).max() < 1e-3
    best = ideal(full, 4)[:, :, 1:, 1:]
    cosine = torch.nn.functional.cosine_similarity(pruned[:, :, 1:, 1:], best, dim=-1, eps=1e-30)
    assert distance_to_ideal(pruned, ideal_attention(full, 4), skip=1).tolist() == pytest.approx(
        (1 - cosine).mean((1, 2)).tolist()
    )
    assert distance_to_ideal(pruned, ideal_attention(full, 4), skip=1).min() > 0.1
