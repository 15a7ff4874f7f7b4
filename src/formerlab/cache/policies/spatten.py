"""SpAtten: cascade token pruning."""

import sys
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from formerlab.cache.policies.policy import LayerInputs, Policy, largest


class SpAtten(Policy):
    """A_l[k] = sum over layers 1..l, all heads and all queries of p; layer l + 1 sees the keys of largest A_l
    (arXiv:2012.09852, section 3).

    A2SF (arXiv:2407.20485, eq. 1) has the same score. All heads retain the same tokens, and a token that layer l drops
    is absent from every later layer; the first layer is not pruned. The sum includes later queries, because the method
    was designed for encoders. Queries of dropped tokens still see their own key. If all layers have the same budget, as
    in `Simulation`, the scores of the first layer determine the retained tokens.
    """

    kind: Literal["spatten"] = "spatten"

    needs: ClassVar[tuple[str, ...]] = ("state",)

    def capacity(self, budget: int) -> int:
        return sys.maxsize  # no limit: `visible` applies the budget

    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the mask of the tokens that earlier layers retained, and update the state for the next layer.

        `state["score"]` is A (batch, time), and `state["retained"]` (batch, time) marks the tokens of the next layer.
        """
        state = layer.state if layer.state is not None else {}
        retained = state.get("retained", layer.token_mask)
        self_mask = torch.eye(retained.shape[-1], dtype=torch.bool, device=retained.device)
        visible = ((retained[:, None] & layer.causal) | self_mask)[:, None]
        received = layer.attention(visible).sum((1, 2))
        state["score"] = state["score"] + received if "score" in state else received
        best = largest(state["score"].masked_fill(~retained, -torch.inf), layer.budget_tensor)
        state["retained"] = best & retained
        return visible.expand(-1, layer.logits.shape[1], -1, -1)
