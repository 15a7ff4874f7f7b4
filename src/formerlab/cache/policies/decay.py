"""Decay: accumulated attention with a decay factor."""

from typing import Literal

from pydantic import Field

from formerlab.cache.eviction import Eviction, Scores
from formerlab.spec import AnyCount


class Decay(Eviction):
    """S[k] <- alpha S[k] + p[k]: decay first, then add; the newest attention has weight 1 (Accumulated Attention Score
    Decaying Technique for Transformer Decoder Token Pruning, "the Decay article", eq. 5).

    The article is by Hyun-rae Jo and Dongkun Shin (Sungkyunkwan University, 2024); its later form is A2SF
    (arXiv:2407.20485, eq. 5 and 6). Before the first eviction S[k] = sum over q of alpha^(n - q) p[q, k]
    after query n. alpha = 1 is the accumulated score of H2O; alpha = 0 uses the newest attention row only.
    """

    kind: Literal["decay"] = "decay"
    alpha: float = Field(default=0.2, ge=0.0, le=1.0)
    """Decay factor per step."""
    recent: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of the budget reserved for the most recent tokens, rounded down; 0 in the article."""
    sink: AnyCount = 0
    """Number of first tokens that are never evicted (the `streaming_budget` of A2SF's code)."""

    @property
    def linear(self) -> tuple[float, float] | None:
        return self.alpha, 1.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        return self.alpha * past + attention
