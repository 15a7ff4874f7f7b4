"""The ideal: what a policy with the same budget could see at best."""

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from formerlab.cache.policies.policy import Layer, Policy, largest


class Ideal(Policy):
    """Each query sees itself and the `budget` earlier keys of its own largest probabilities; nothing is ever removed
    (arXiv:2407.20485, Table 2).

    The oracle of A2SF, and the row by which `distance_to_ideal` measures. No cache can run it: a key that one query
    leaves out may be the next one's best.
    """

    kind: Literal["ideal"] = "ideal"

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        earlier = layer.causal.tril(-1)
        attention = layer.attention(layer.causal).masked_fill(~earlier, -torch.inf)
        return largest(attention, layer.budget_tensor[:, None, None]) & earlier
