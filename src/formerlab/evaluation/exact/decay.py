"""Exact claims about accumulated scores and evicting caches (Accumulated Attention Score Decaying; H2O)."""

import functools
import itertools

import torch

from formerlab.cache import Decay, KVCache, PrunedCache, Simulation
from formerlab.cache.simulation import Seen
from formerlab.layers import Pattention
from formerlab.layers.position import Learned, Rotary
from formerlab.models.decoder import Decoder

LENGTHS = (512, 2048, 4096)
"""Lengths at which cache bytes are counted."""


def age_bias() -> dict[str, float]:
    """Return the score of the oldest over that of the newest token under uniform causal attention, no eviction.

    A query at position q gives 1 / (q + 1) to every key; S <- alpha S + p.
    """
    numbers = {}
    for alpha, length in ((1.0, 256), (1.0, 4096), (0.2, 4096), (0.5, 4096), (0.8, 4096)):
        scores = torch.zeros(length, dtype=torch.float64)
        for q in range(length):
            scores[: q + 1] = alpha * scores[: q + 1] + 1 / (q + 1)
        name = f"age_ratio_alpha_{alpha:g}_length_{length}"
        numbers[name] = float(scores[0] / scores[-1])
    return numbers


def simulation_equals_eviction() -> dict[str, float]:
    """Compare simulated with really evicted logits and kept sets, several policies and models."""
    tokens = torch.randint(31, (2, 20), generator=torch.Generator().manual_seed(2))
    worst, different = 0.0, 0
    policies = [
        Decay(alpha=alpha, recent=recent) for alpha, recent in ((0.2, 0.0), (0.5, 0.0), (1.0, 0.5), (0.95, 0.5))
    ]
    for spec, policy, budget in itertools.product(_models(), policies, (4, 8)):
        model, cache = spec.build(0).double(), PrunedCache(policy, budget)
        masks: dict[int, torch.Tensor] = {}
        simulation = Simulation(policy, budget, observe=functools.partial(_remember, masks))
        with torch.no_grad():
            simulated = model(tokens, attend=simulation)
            for now in range(tokens.shape[1]):
                real = model(tokens[:, now : now + 1], attend=cache, start=now)
                worst = max(worst, float((real[:, 0] - simulated[:, now]).abs().max()))
                different += now + 1 < tokens.shape[1] and not _same_sets(cache, masks, now)
    return {"simulated_against_real_eviction": worst, "cases_with_different_kept_sets": float(different)}


def cache_memory() -> dict[str, float]:
    """Return bytes of keys and values of a cache that keeps 40 %, over those of the full cache."""
    numbers = {}
    for length in LENGTHS:
        full, pruned = KVCache(capacity=length), PrunedCache(Decay(), round(0.4 * length))
        q, k, v = torch.randn(3, 1, 2, length, 8, generator=torch.Generator().manual_seed(0))
        for cache in (full, pruned):
            cache(0, q, k, v)
        numbers[f"kv_bytes_ratio_{length}"] = pruned.bytes() / full.bytes()
    return numbers


def _remember(masks: dict[int, torch.Tensor], layer: int, seen: Seen) -> None:
    masks[layer] = seen.visible


def _models() -> list[Decoder]:
    sizes = {"vocabulary": 31, "layers": 2, "width": 16, "heads": 4, "context": 24, "embedding_std": 0.5}
    return [
        Decoder(**sizes, position=Rotary()),
        Decoder(**sizes, position=Learned()),
        Decoder(**sizes, projection=Pattention(tokens=8), feedforward=Pattention(tokens=32)),
    ]


def _same_sets(cache: PrunedCache, masks: dict[int, torch.Tensor], now: int) -> bool:
    """Compare what is kept after a step with what the simulation shows to the next query."""
    for layer, visible in masks.items():
        kept = cache.kept(layer)
        for row, head in itertools.product(range(kept.shape[0]), range(kept.shape[1])):
            seen = visible[row, head, now + 1].nonzero().flatten().tolist()
            if kept[row, head].tolist() != seen[:-1]:
                return False
    return True
