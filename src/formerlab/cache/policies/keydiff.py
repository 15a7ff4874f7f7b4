"""KeyDiff: retains keys that differ from the other keys."""

from typing import Literal

import torch
from torch.nn import functional as F

from formerlab.cache.eviction import CacheState, Eviction, Keys, Scores
from formerlab.cache.policies.policy import at_least_float32
from formerlab.layers.shapes import Start


class KeyDiff(Eviction):
    """Evict the key most similar to the mean direction: priority = -cos(k, mean over the retained keys of k / ||k||_2)
    (arXiv:2504.15364, section 3).

    The paper compresses a prompt after every block of 128 tokens; here a block is one token. Cosines are rounded to 16
    binary places, so that ties are exact: if only two keys are retained, both have the same cosine with their mean.
    """

    kind: Literal["keydiff"] = "keydiff"
    needs = ("keys",)

    def eviction_priority(self, state: CacheState, keys: Keys | None, query: Start) -> Scores:
        assert keys is not None
        direction = F.normalize(at_least_float32(keys), dim=-1)
        retained = torch.where((state.positions <= query).unsqueeze(-1), direction, 0.0)
        mean = F.normalize(retained.sum(2, keepdim=True), dim=-1)
        similarity = ((direction * mean).sum(-1) * 2**16).round() / 2**16
        return self.reduce_over_heads(-similarity.unsqueeze(2)).to(state.scores.dtype)
