"""H2O: heavy hitters of the accumulated attention, beside a recent window."""

from typing import Literal

import torch
from jaxtyping import Bool
from pydantic import Field, model_validator
from torch import Tensor

from formerlab.cache.budget import part
from formerlab.cache.eviction import Counts, Eviction, Scores
from formerlab.cache.policies.policy import Layer, largest, on_device

Mask = Bool[Tensor, "batch key_heads time time"]


class H2O(Eviction):
    """Keep the keys of the largest accumulated attention and the most recent ones (arXiv:2306.14048, Algorithm 1).

    Four algorithms go by this name in the official code, none of them quite the paper's; three rules are named here.
    """

    kind: Literal["h2o"] = "h2o"
    recent: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the budget reserved for the most recent tokens, rounded down."""
    variant: Literal["accumulated", "local_statistics", "global_statistics"] = "accumulated"
    """accumulated: S <- S + p over the kept keys, exact budget: the H2O of A2SF (arXiv:2407.20485), most likely of the
    Decay article too. local_statistics: the official mask of OPT, from unpruned attention, row by row.
    global_statistics: the official mask of LLaMA since 2024-04, which chooses with the attention of LATER queries
    and so leaks the future: its accuracies are not those of a cache."""

    @model_validator(mode="after")
    def _check(self) -> "H2O":
        if self.variant != "accumulated" and self.scope != "group":
            raise ValueError(f"variant={self.variant} knows no scope={self.scope}; leave scope out")
        return self

    @property
    def is_online(self) -> bool:
        """The official masks read attention that a cache which has evicted cannot know."""
        return self.variant == "accumulated"

    @property
    def linear(self) -> tuple[float, float] | None:
        return 1.0, 1.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        return past + attention

    def protected(self, budget: int) -> tuple[int, int]:
        return 0, part(self.recent, budget)

    def visible(self, layer: Layer) -> Mask:
        if self.variant == "accumulated":
            return super().visible(layer)
        windows = [self.protected(budget)[1] for budget in layer.budgets]
        recent = on_device(windows, layer.logits.device)[:, None, None]
        heavy = layer.budget_tensor[:, None, None] - recent
        now = torch.arange(layer.logits.shape[-1], device=layer.logits.device)
        band = (now[:, None] - now <= recent)[:, None]
        hitters = _local_hitters if self.variant == "local_statistics" else _global_hitters
        return hitters(layer, heavy) | band


def _local_hitters(layer: Layer, heavy: Counts) -> Mask:
    """Heavy hitters as in FMInference/H2O (ac75c2a), utils_lm_eval/modify_opt.py.

    The first `heavy` queries see all, and their full rows are summed. A later one takes the heavy - 1 largest sums and
    itself; then its full row is added and the sum of every other key is reset to 0, of recent ones too. So the sets of
    heavy and of recent keys overlap, and a new key must beat an old one with its very first score.
    """
    attention = layer.attention(layer.causal)
    seen = layer.causal.expand_as(attention).clone()
    total = attention[:, :, 0]
    for now in range(1, attention.shape[-1]):
        best = largest(total[..., :now], (heavy[..., 0] - 1).clamp(min=0))
        seen[:, :, now, :now] = best | (heavy > now)
        total = (total + attention[:, :, now]) * seen[:, :, now]
    return seen


def _global_hitters(layer: Layer, heavy: Counts) -> Mask:
    """Heavy hitters as in FMInference/H2O (ac75c2a), utils_lm_eval/modify_llama.py: the largest full column sums."""
    attention = layer.attention(layer.causal)
    return largest(attention.sum(2), heavy[..., 0])[:, :, None].expand_as(attention)
