"""TOVA: keys that the newest query attends to matter."""

from typing import Literal

from formerlab.cache.eviction import Eviction, Scores


class TOVA(Eviction):
    """S[k] <- p[k], summed over all heads of a layer, which keep one set (arXiv:2401.06104, version 1, section 3.4).

    The sum and the paper's mean rank keys alike. The newest key is never the one to go.
    """

    kind: Literal["tova"] = "tova"
    scope: Literal["group", "layer"] = "layer"
    """Heads that choose together; the paper's are all heads of a layer."""

    @property
    def linear(self) -> tuple[float, float] | None:
        return 0.0, 1.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        return attention

    def protected(self, budget: int) -> tuple[int, int]:
        return 0, min(1, budget)
