"""TOVA: retains keys that the newest query attends to."""

from typing import Literal

from formerlab.cache.eviction import Eviction, Scores


class TOVA(Eviction):
    """S[k] <- p[k], summed over the heads of a layer, which retain the same keys (arXiv:2401.06104, version 1, section
    3.4).

    The sum gives the same ranking as the paper's mean. The newest key is never evicted unless `sink` fills the budget.
    """

    kind: Literal["tova"] = "tova"
    scope: Literal["group", "layer"] = "layer"
    """Heads that retain the same keys: a GQA group, or all heads of a layer as in the paper."""

    @property
    def linear(self) -> tuple[float, float] | None:
        return 0.0, 1.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        return attention

    def protected(self, budget: int) -> tuple[int, int]:
        sink, recent = super().protected(budget)
        return sink, max(recent, min(1, budget - sink))
