"""Policies that divide a cache among layers, heads or blocks of keys, and leave the scores to another policy."""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import AfterValidator, Field
from torch import Tensor

from formerlab.cache.budget import EVERYTHING, part
from formerlab.cache.eviction import CacheState, Eviction, Scores
from formerlab.cache.one_shot import importance_of
from formerlab.cache.policies.decay import Decay
from formerlab.cache.policies.expected import ExpectedAttention
from formerlab.cache.policies.h2o import H2O
from formerlab.cache.policies.keydiff import KeyDiff
from formerlab.cache.policies.knorm import Knorm
from formerlab.cache.policies.policy import (
    Importance,
    Layer,
    OneShot,
    Policy,
    Prompt,
    Protecting,
    largest,
    masked_softmax,
    precise,
)
from formerlab.cache.policies.random import Random
from formerlab.cache.policies.snapkv import SnapKV
from formerlab.cache.policies.tova import TOVA
from formerlab.errors import UserError
from formerlab.kernels import EMPTY
from formerlab.layers.position import PositionEncoding
from formerlab.spec import Layers, Size

Mask = Bool[Tensor, "batch key_heads time time"]


def check_scoring(policy: Policy) -> Policy:
    """Return the policy. Raises ValueError for one whose keys cannot be divided: official masks, protected prompts."""
    if isinstance(policy, Eviction) and not policy.is_online:
        raise ValueError(f"policy={policy!r}: an official mask divides its own budget; use variant='accumulated'")
    if isinstance(policy, Protecting) and policy.protect is not None:
        raise ValueError(f"policy={policy!r}: only the policy alone protects a prompt; leave protect out")
    return policy


Scoring = Annotated[
    H2O | Decay | TOVA | KeyDiff | Knorm | Random | SnapKV | ExpectedAttention,
    Field(discriminator="kind"),
    AfterValidator(check_scoring),
]
"""The policies that score keys."""


class HeadAdaptive(Policy):
    """Divide the budget of a layer among its heads by score: heads x budget keys of largest S, at least
    floor(safeguard budget) in each head (AdaKV, arXiv:2407.11550, Algorithm 1).

    The total equals that of an equal division. `policy` scores the keys and protects its sink and recent tokens in
    every head. A one-shot policy chooses once (`CompressedCache`). A stepwise policy evicts the keys of lowest score
    over all heads after every query, in simulation only.
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
        """Mark head groups x `count` keys: the largest floor(safeguard count) of each group, then of all groups."""
        safe = torch.full(importance.shape[:-1], part(self.safeguard, count), device=importance.device)
        scores = importance.masked_fill(largest(importance, safe), torch.inf).flatten(1)
        total = torch.full(scores.shape[:-1], count * importance.shape[1], device=scores.device)
        return largest(scores, total).view_as(importance)

    def visible(self, layer: Layer) -> Mask:
        """Evict query by query; slot k of the state holds key k."""
        policy = self.policy
        assert isinstance(policy, Eviction), "check_configuration refuses other policies"
        batch, key_heads, _, time, _ = layer.logits.shape
        state = policy.empty_state(layer.budgets, key_heads, time, precise(layer.logits.new_empty(0)))
        safe = torch.tensor([part(self.safeguard, budget) for budget in layer.budgets], device=layer.logits.device)
        groups, seen = state.positions.shape[1], []
        places = torch.arange(time, device=layer.logits.device)
        initial = policy.initial_scores(places, groups, layer.keys, layer.index)
        for query in range(time):
            state.positions[..., query] = query
            held = state.positions != EMPTY
            seen.append(held)
            attention = masked_softmax(layer.logits[:, :, :, query], held.unsqueeze(2))
            own = torch.full((batch, groups, 1), query, device=held.device)
            start = None if initial is None else initial[..., query : query + 1].to(state.scores.dtype)
            policy.rescore(state, attention, own, None if start is None else start.expand(own.shape))
            priority = policy.eviction_priority(state, layer.keys, query)
            for _ in range(groups):
                _evict_one(state, priority, query, safe)
        return torch.stack(seen, 2).expand(batch, key_heads, time, time)


def _evict_one(state: CacheState, priority: Scores, now: int, safe: Tensor) -> None:
    """Evict the key of lowest priority over all heads of each sequence that holds more than its total.

    Of equal priorities the oldest key goes, then the one of the first head.
    """
    held = state.positions != EMPTY
    counts, groups = held.sum(-1), held.shape[1]
    above = counts.sum(-1) > groups * torch.as_tensor(state.capacity, device=held.device).flatten()
    free = held & (state.positions >= state.sink) & (state.positions <= now - state.recent)
    free &= (counts > safe[:, None]).unsqueeze(-1)
    order = priority.masked_fill(~free, torch.inf).transpose(1, 2).flatten(1)
    lowest = (order == order.amin(-1, keepdim=True)).byte().argmax(-1)[above]
    state.positions[above.nonzero().flatten(), lowest % groups, lowest // groups] = EMPTY


class Chunks(OneShot):
    """Score keys by block: S of every key is the mean of its block of `size` keys, so that blocks stay together
    (ChunkKV, arXiv:2502.00299, section 3.2).

    `policy` scores the keys of a prompt. One block is retained in part if the budget is no multiple of `size`.
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
    """Divide the cache among layers: layer l of L retains budget (2 - last - 2 (1 - last) l / (L - 1)) keys
    (PyramidKV, arXiv:2406.02069, section 4.2, with last = 1 / beta).

    Lower layers retain more. Rounding keeps the total at L x budget, and the budget 1.0 prunes nothing. A layer cannot
    retain more than the text, so above a ratio of about 0.5 the lowest layers leave part of the total unused.
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
        """Return the budget of a layer. Raises UserError if it is below one key, and for a layer beyond `layers`."""
        if layer >= self.layers:
            raise UserError(f"{self!r}: the model has more than {self.layers} layers; give layers=their number")
        if budget >= EVERYTHING or self.layers == 1:
            return budget
        count = self._below(budget, layer + 1) - self._below(budget, layer)
        if count < 1:
            raise UserError(f"budget {budget}: Pyramid leaves layer {layer} no key; give a larger budget or last")
        return count

    def _below(self, budget: int, layers: int) -> int:
        """Return the rounded total of the first `layers` layers."""
        slope = (1 - self.last) * (layers - 1) / (self.layers - 1)
        return int(budget * layers * (2 - self.last - slope) + 0.5)

    def visible(self, layer: Layer) -> Mask:
        return self.policy.visible(layer)
