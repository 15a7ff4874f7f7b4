"""Ideal: the upper bound of the attention that `budget` keys can receive from a query."""

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from formerlab.cache.policies.policy import LayerInputs, Policy, largest


class Ideal(Policy):
    """Each query sees its own key and the `budget` earlier keys of largest probability; no key is ever evicted
    (arXiv:2407.20485, Table 2).

    This is the oracle of A2SF and the reference of `distance_to_ideal`. It runs only in simulation, because a query may
    need a key that an earlier query did not use.
    """

    kind: Literal["ideal"] = "ideal"

    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        earlier = layer.causal.tril(-1)
        attention = layer.attention(layer.causal).masked_fill(~earlier, -torch.inf)
        return largest(attention, layer.budget_tensor[:, None, None]) & earlier
