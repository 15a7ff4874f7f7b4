"""Policies that divide a cache among layers, heads or blocks of keys. An inner policy scores the keys."""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import AfterValidator, Field
from torch import Tensor

from formerlab.cache.budget import UNLIMITED, floor_fraction
from formerlab.cache.eviction import CacheState, Eviction, Scores
from formerlab.cache.one_shot import importance_of
from formerlab.cache.policies.decay import Decay
from formerlab.cache.policies.expected import ExpectedAttention
from formerlab.cache.policies.h2o import H2O
from formerlab.cache.policies.keydiff import KeyDiff
from formerlab.cache.policies.knorm import Knorm
from formerlab.cache.policies.policy import (
    Importance,
    LayerInputs,
    OneShot,
    Policy,
    Prompt,
    Protecting,
    at_least_float32,
    largest,
    masked_softmax,
)
from formerlab.cache.policies.random import Random
from formerlab.cache.policies.sigmoid_window import SigmoidWindow
from formerlab.cache.policies.snapkv import SnapKV
from formerlab.cache.policies.tova import TOVA
from formerlab.errors import UserError
from formerlab.kernels import EMPTY_POSITION
from formerlab.layers.position import PositionEncoding
from formerlab.spec import Layers, Size

Mask = Bool[Tensor, "batch key_heads time time"]


def check_scoring(policy: Policy) -> Policy:
    """Return the policy. Raises ValueError for official masks of H2O and for policies that protect the prompt."""
    if isinstance(policy, Eviction) and not policy.is_online:
        problem = "H2O variants other than 'accumulated' have their own budget rule"
        raise ValueError(f"policy={policy!r}: {problem}; use variant='accumulated'")
    if isinstance(policy, Protecting) and policy.protect is not None:
        raise ValueError(f"policy={policy!r}: an inner policy cannot protect a prompt; leave protect out")
    return policy


Scoring = Annotated[
    H2O | Decay | TOVA | KeyDiff | Knorm | Random | SnapKV | SigmoidWindow | ExpectedAttention,
    Field(discriminator="kind"),
    AfterValidator(check_scoring),
]
"""Policies that score keys for a division among layers, heads or blocks."""


class HeadAdaptive(Policy):
    """Divide the budget of a layer among its heads by score: retain the heads * budget keys of largest S, and at least
    floor(safeguard * budget) in each head (AdaKV, arXiv:2407.11550, Algorithm 1).

    `policy` scores the keys and protects its sink and recent tokens in every head. In a `CompressedCache` every
    policy selects keys once. In a `Simulation` a stepwise policy evicts the keys of lowest score over all heads after
    every query.
    """

    kind: Literal["head_adaptive"] = "head_adaptive"
    policy: Scoring
    """The policy that scores the keys."""
    safeguard: float = Field(default=0.2, ge=0.0, le=1.0)
    """Fraction of the budget that every head retains, rounded down."""

    @property
    def scorer(self) -> Policy:
        return self.policy

    @property
    def is_ragged(self) -> bool:
        return True

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding | None:
        return self.policy.check_position(position)

    def check_budget(self, budget: int) -> None:
        self.policy.check_budget(budget)

    def select(self, importance: Importance, count: int) -> Bool[Tensor, "batch head_groups time"]:
        """Mark head_groups * count keys.

        First mark the floor(safeguard * count) largest scores of each head group, then the largest remaining scores of
        all head groups.
        """
        minimum = torch.full(importance.shape[:-1], floor_fraction(self.safeguard, count), device=importance.device)
        scores = importance.masked_fill(largest(importance, minimum), torch.inf).flatten(1)
        total = torch.full(scores.shape[:-1], count * importance.shape[1], device=scores.device)
        return largest(scores, total).view_as(importance)

    def visible(self, layer: LayerInputs) -> Mask:
        """Evict after every query; slot k of the state contains key k."""
        policy = self.policy
        assert isinstance(policy, Eviction), "check_configuration refuses other policies"
        batch, key_heads, _, time, _ = layer.logits.shape
        state = policy.empty_state(layer.budgets, key_heads, time, at_least_float32(layer.logits.new_empty(0)))
        device = layer.logits.device
        minimum = torch.tensor([floor_fraction(self.safeguard, budget) for budget in layer.budgets], device=device)
        head_groups, visible = state.positions.shape[1], []
        initial = policy.initial_scores(torch.arange(time, device=device), head_groups, layer.keys, layer.index)
        for query in range(time):
            state.positions[..., query] = query
            filled = state.positions != EMPTY_POSITION
            visible.append(filled)
            attention = masked_softmax(layer.logits[:, :, :, query], filled.unsqueeze(2))
            slot = torch.full((batch, head_groups, 1), query, device=device)
            first_score = None if initial is None else initial[..., query : query + 1].to(state.scores.dtype)
            policy.rescore(state, attention, slot, None if first_score is None else first_score.expand(slot.shape))
            priority = policy.eviction_priority(state, layer.keys, query)
            for _ in range(head_groups):
                _evict_one(state, priority, query, minimum)
        return torch.stack(visible, 2).expand(batch, key_heads, time, time)


def _evict_one(state: CacheState, priority: Scores, query: int, minimum: Tensor) -> None:
    """Evict the key of lowest priority over all heads in each sequence above its total budget.

    Ties evict the oldest key, then the key of the first head. `minimum` is the number of keys that every head retains.
    """
    filled = state.positions != EMPTY_POSITION
    counts, head_groups = filled.sum(-1), filled.shape[1]
    above = counts.sum(-1) > head_groups * torch.as_tensor(state.capacity, device=filled.device).flatten()
    candidates = filled & (state.positions >= state.sink) & (state.positions <= query - state.recent)
    candidates &= (counts > minimum[:, None]).unsqueeze(-1)
    order = priority.masked_fill(~candidates, torch.inf).transpose(1, 2).flatten(1)
    lowest = (order == order.amin(-1, keepdim=True)).byte().argmax(-1)[above]
    state.positions[above.nonzero().flatten(), lowest % head_groups, lowest // head_groups] = EMPTY_POSITION


class Chunks(OneShot):
    """Score keys by block: S of every key is the mean of its block of `size` keys, so that whole blocks are retained
    (ChunkKV, arXiv:2502.00299, section 3.2).

    `policy` scores the keys of a prompt. If the budget is not a multiple of `size`, one block is retained partially.
    """

    kind: Literal["chunks"] = "chunks"
    policy: Scoring
    """The policy that scores the keys."""
    size: Size = 10
    """Number of adjacent keys in a block."""

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding | None:
        return self.policy.check_position(position)

    def check_budget(self, budget: int) -> None:
        super().check_budget(budget)
        self.policy.check_budget(budget)

    def protected(self, budget: int) -> tuple[int, int]:
        (sink, recent), (first, last) = super().protected(budget), self.policy.protected(budget)
        sink = max(sink, first)
        return sink, min(max(recent, last), budget - sink)

    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        return block_means(importance_of(self.policy, prompt, position), self.size)


def block_means(scores: Float[Tensor, "*shape time"], size: int) -> Float[Tensor, "*shape time"]:
    """Replace each score by the mean of its block; the last block may be shorter."""
    blocks = [scores[..., start : start + size] for start in range(0, scores.shape[-1], size)]
    return torch.cat([block.mean(-1, keepdim=True).expand(block.shape) for block in blocks], -1)


class Pyramid(Policy):
    """Divide the cache among layers: layer l (from 0) of L retains budget * (2 - last - 2 (1 - last) l / (L - 1)) keys
    (PyramidKV, arXiv:2406.02069, section 4.2, with last = 1 / beta).

    Lower layers retain more keys. Rounding keeps the total at L x budget, and a budget of 1.0 disables pruning. A layer
    cannot retain more keys than the text has tokens, so above a fraction of about 0.5 the lowest layers use less than
    their budget.
    """

    kind: Literal["pyramid"] = "pyramid"
    policy: Annotated[Scoring | HeadAdaptive | Chunks, Field(discriminator="kind")]
    """The policy that runs in each layer with the budget of the layer."""
    layers: Layers
    """Number of layers of the model."""
    last: float = Field(default=0.05, gt=0.0, le=1.0)
    """Budget of the last layer as a fraction of the mean budget."""

    @property
    def scorer(self) -> Policy:
        return self.policy.scorer

    @property
    def layer_policy(self) -> Policy:
        return self.policy

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding | None:
        return self.policy.check_position(position)

    def check_budget(self, budget: int) -> None:
        self.policy.check_budget(self.layer_budget(budget, self.layers - 1))

    def layer_budget(self, budget: int, layer: int) -> int:
        """Return the budget of a layer. Raises UserError if it is below one key or `layer` is out of range."""
        if layer >= self.layers:
            raise UserError(f"{self!r}: the model has more than {self.layers} layers; set layers to their number")
        if budget >= UNLIMITED or self.layers == 1:
            return budget
        count = self._cumulative_budget(budget, layer + 1) - self._cumulative_budget(budget, layer)
        if count < 1:
            raise UserError(
                f"budget {budget}: the budget of layer {layer} is below one key; increase the budget or `last`"
            )
        return count

    def _cumulative_budget(self, budget: int, layers: int) -> int:
        """Return the rounded total budget of the first `layers` layers."""
        slope = (1 - self.last) * (layers - 1) / (self.layers - 1)
        return int(budget * layers * (2 - self.last - slope) + 0.5)

    def visible(self, layer: LayerInputs) -> Mask:
        return self.policy.visible(layer)
