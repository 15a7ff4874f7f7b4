"""KeyDiff: retains keys that differ from the other keys."""

from typing import Literal

import torch
from torch.nn import functional as F

from formerlab.cache.eviction import CacheState, Eviction, Keys, Scores
from formerlab.cache.policies.policy import precise
from formerlab.layers.shapes import Start


class KeyDiff(Eviction):
    """The key most like the mean direction goes: priority = -cos(k, mean over the held keys of k / ||k||_2)
    (arXiv:2504.15364, section 3).

    The paper compresses after every block of 128 tokens of a prompt. Here the block is one token, and the mean runs
    over the retained keys. Cosines are rounded to 16 binary places, because two keys have equal cosines with their mean
    and rounding errors must not decide.
    """

    kind: Literal["keydiff"] = "keydiff"
    needs = ("keys",)

    def eviction_priority(self, state: CacheState, keys: Keys | None, now: Start) -> Scores:
        assert keys is not None
        direction = F.normalize(precise(keys), dim=-1)
        held = torch.where((state.positions <= now).unsqueeze(-1), direction, 0.0)
        anchor = F.normalize(held.sum(2, keepdim=True), dim=-1)
        likeness = ((direction * anchor).sum(-1) * 2**16).round() / 2**16
        return self.reduce_over_heads(-likeness.unsqueeze(2)).to(state.scores.dtype)
