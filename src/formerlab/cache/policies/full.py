"""No pruning."""

import sys
from typing import Literal

from jaxtyping import Bool
from torch import Tensor

from formerlab.cache.eviction import Eviction
from formerlab.cache.policies.policy import LayerInputs


class Full(Eviction):
    """Retain every key: causal attention (arXiv:1706.03762, section 3.2.3). The budget is ignored."""

    kind: Literal["full"] = "full"

    @property
    def is_online(self) -> bool:
        # `Eviction.is_online` is False for a class that overrides only `visible`; the override gives the same masks
        return super().is_online

    def capacity(self, budget: int) -> int:
        return sys.maxsize

    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the causal mask, which equals the mask of step-by-step eviction without a budget."""
        batch, key_heads = layer.logits.shape[:2]
        return layer.causal.expand(batch, key_heads, -1, -1)
