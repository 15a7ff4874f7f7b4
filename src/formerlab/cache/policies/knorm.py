"""Knorm: retains keys of small norm."""

from typing import Literal

from formerlab.cache.eviction import Eviction, Keys, PromptScores, Times
from formerlab.cache.policies.policy import at_least_float32


class Knorm(Eviction):
    """S[k] = -||k||_2, set when the key enters: keys of large norm tend to receive little attention (arXiv:2406.11430).

    The paper compresses a prompt once; here the key of lowest score is evicted after every query. Norms are rounded to
    12 bits, so that a repeated token has equal scores at all rotations.
    """

    kind: Literal["knorm"] = "knorm"
    needs = ("keys",)

    def initial_scores(self, positions: Times, head_groups: int, keys: Keys | None, layer: int) -> PromptScores | None:
        assert keys is not None
        mantissa, exponent = at_least_float32(keys).norm(dim=-1).frexp()
        return self.reduce_over_heads(-((mantissa * 2**12).round() / 2**12).ldexp(exponent).unsqueeze(2))
