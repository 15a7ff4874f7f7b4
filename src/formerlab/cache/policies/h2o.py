"""H2O: heavy hitters of accumulated attention, and a recent window."""

from typing import Literal

import torch
from jaxtyping import Bool
from pydantic import Field, model_validator
from torch import Tensor

from formerlab.cache.eviction import Counts, Eviction, Scores
from formerlab.cache.policies.policy import LayerInputs, largest, on_device

Mask = Bool[Tensor, "batch key_heads time time"]


class H2O(Eviction):
    """Retain the keys of largest accumulated attention and the most recent keys (arXiv:2306.14048, Algorithm 1).

    The official code contains four algorithms named H2O, and each differs from the paper.
    """

    kind: Literal["h2o"] = "h2o"
    recent: float = Field(default=0.5, ge=0.0, le=1.0)
    """Fraction of the budget reserved for the most recent tokens, rounded down."""
    variant: Literal["accumulated", "local_statistics", "global_statistics"] = "accumulated"
    """accumulated: S <- S + p over the retained keys with an exact budget; the H2O of A2SF (arXiv:2407.20485) and most
    likely of the Decay article. local_statistics: the official mask for OPT, from unpruned attention, row by row.
    global_statistics: the official mask for LLaMA since 2024-04, from the attention of all queries including later
    ones, so a cache cannot reach its accuracies."""

    @model_validator(mode="after")
    def _check(self) -> "H2O":
        if self.variant != "accumulated" and self.scope != "group":
            raise ValueError(f"variant={self.variant} does not support scope={self.scope}; leave scope out")
        if self.variant != "accumulated" and (self.sink or self.protect):
            raise ValueError(f"variant={self.variant} does not support sink and protect; leave them out")
        return self

    @property
    def is_online(self) -> bool:
        return self.variant == "accumulated" and super().is_online

    @property
    def linear(self) -> tuple[float, float] | None:
        return 1.0, 1.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        return past + attention

    def visible(self, layer: LayerInputs) -> Mask:
        if self.variant == "accumulated":
            return super().visible(layer)
        windows = [self.protected(budget)[1] for budget in layer.budgets]
        recent = on_device(windows, layer.logits.device)[:, None, None]
        heavy_count = layer.budget_tensor[:, None, None] - recent
        positions = torch.arange(layer.logits.shape[-1], device=layer.logits.device)
        band = (positions[:, None] - positions <= recent)[:, None]
        mask = _local_mask if self.variant == "local_statistics" else _global_mask
        return mask(layer, heavy_count) | band


def _local_mask(layer: LayerInputs, heavy_count: Counts) -> Mask:
    """Mark the heavy hitters as in FMInference/H2O (ac75c2a), utils_lm_eval/modify_opt.py.

    The first `heavy_count` queries see all keys, and their unpruned attention rows are summed. A later query selects
    its own key and the heavy_count - 1 keys with the largest sums. Its unpruned row is added to their sums, and the
    sums of all other keys, including recent keys, are reset to 0. Heavy and recent keys therefore overlap, and a new
    key is ranked by its attention from a single query.
    """
    attention = layer.attention(layer.causal)
    visible = layer.causal.expand_as(attention).clone()
    total = attention[:, :, 0]
    for query in range(1, attention.shape[-1]):
        best = largest(total[..., :query], (heavy_count[..., 0] - 1).clamp(min=0))
        visible[:, :, query, :query] = best | (heavy_count > query)
        total = (total + attention[:, :, query]) * visible[:, :, query]
    return visible


def _global_mask(layer: LayerInputs, heavy_count: Counts) -> Mask:
    """Mark the keys of largest unpruned column sum, as in FMInference/H2O (ac75c2a), utils_lm_eval/modify_llama.py."""
    attention = layer.attention(layer.causal)
    return largest(attention.sum(2), heavy_count[..., 0])[:, :, None].expand_as(attention)
