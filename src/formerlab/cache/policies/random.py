"""Random: retains random keys, a baseline for all policies."""

from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from formerlab.cache.eviction import Eviction, Keys, PromptScores, Times
from formerlab.seeding import mixed_seed
from formerlab.spec import Seed

LOW_BITS = 2**32 - 1


class Random(Eviction):
    """S[k] uniform in [0, 1), sampled when the key enters, so that every set of `budget` keys is equally likely
    (a baseline since H2O, arXiv:2306.14048).

    The scores depend only on (seed, layer, head group, position), so they are equal in simulation, in the cache and in
    all sequences.
    """

    kind: Literal["random"] = "random"
    seed: Seed = 0
    """Seed of the scores."""

    def initial_scores(self, positions: Times, head_groups: int, keys: Keys | None, layer: int) -> PromptScores | None:
        heads = torch.arange(head_groups, device=positions.device)[:, None]
        bits = _hash(_hash(positions.long() ^ mixed_seed("cache", self.seed, layer)) + heads * 0x9E3779B9)
        return (bits >> 8).unsqueeze(0).float() / 2**24  # exact in float32


def _hash(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Mix the low 32 bits by a bijection (T. Mueller's integer hash)."""
    x = x & LOW_BITS
    for _ in range(2):
        x = ((x >> 16) ^ x) * 0x45D9F3B & LOW_BITS
    return (x >> 16) ^ x
