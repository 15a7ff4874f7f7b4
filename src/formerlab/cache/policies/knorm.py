"""Knorm: keys of small norm matter."""

from typing import Literal

from formerlab.cache.eviction import Entering, Eviction, Keys, Times
from formerlab.cache.policies.policy import precise


class Knorm(Eviction):
    """S[k] = -||k||_2, fixed when the key enters: large keys tend to receive little attention (arXiv:2406.11430).

    The paper compresses a prompt once; step by step, the same score decides after every query. Norms are rounded to 12
    bits: rotations leave them alone, so those of a repeated token differ by rounding errors, which must not decide.
    """

    kind: Literal["knorm"] = "knorm"
    needs = ("keys",)

    def initial_scores(self, positions: Times, head_groups: int, keys: Keys | None, layer: int) -> Entering | None:
        assert keys is not None
        mantissa, exponent = precise(keys).norm(dim=-1).frexp()
        return self.reduce_over_heads(-((mantissa * 2**12).round() / 2**12).ldexp(exponent).unsqueeze(2))
