"""Compression once, after an unpruned prompt: what a policy needs for it."""

from abc import abstractmethod
from typing import NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache.eviction import Eviction, coefficients
from formerlab.cache.policies.policy import Layer, Policy, Prompt, by_group, largest
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding

Importance = Float[Tensor, "batch head_groups time"]
QUERIES = 128  # whose attention is held at a time


class OneShot(Policy):
    """A policy that chooses once, from the queries of a whole prompt, and has no rule for single steps."""

    @abstractmethod
    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        """Return the score of each key of a prompt, whose sequences all have the same length and budget."""

    @abstractmethod
    def protected(self, budget: int) -> tuple[int, int]:
        """Return how many first and how many last positions are kept in any case; together at most `budget`."""

    def capacity(self, budget: int) -> int:
        """Return the keys that are kept."""
        return budget

    def check_stepwise(self) -> NoReturn:
        """Raise UserError."""
        raise UserError(
            f"{self!r} chooses once, after a whole prompt, and has no rule for single steps; "
            "run it as a CompressedCache"
        )

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        """Raise UserError."""
        self.check_stepwise()


def kept(
    policy: OneShot | Eviction, prompt: Prompt, position: PositionEncoding | None
) -> Bool[Tensor, "batch head_groups time"]:
    """Mark the keys that a policy keeps of a prompt: those it protects, then those of the largest importance."""
    time, count = prompt.k.shape[2], prompt.budgets[0]
    importance = policy.importance(prompt, position) if isinstance(policy, OneShot) else accumulated(policy, prompt)
    sink, recent = policy.protected(min(count, time))
    place = torch.arange(time, device=importance.device)
    importance = importance.masked_fill((place < sink) | (place >= time - recent), torch.inf)
    return largest(
        importance, torch.full(importance.shape[:-1], min(policy.capacity(count), time), device=importance.device)
    )


def accumulated(policy: Eviction, prompt: Prompt) -> Importance:
    """Return what a step-by-step policy ranks by after the last query of a prompt of which nothing was evicted.

    With S <- decay S + gain p that is gain times the sum over q of decay^(T - 1 - q) p[q, k]: column sums of the whole
    attention, the latest row with weight 1 (H2O and A2SF in their codes for long prompts).
    """
    rule = coefficients(policy)
    assert rule is not None, "a cache refuses such a policy"
    decay, gain = rule
    time, key_heads = prompt.k.shape[2], prompt.k.shape[1]
    like = prompt.k.new_empty(0, dtype=torch.promote_types(prompt.k.dtype, torch.float32))
    state = policy.empty_state(prompt.budgets, key_heads, time, like)
    state.positions.copy_(torch.arange(time, device=state.positions.device))
    initial = policy.entering(prompt.k, state.positions.shape[1], prompt.layer, state.scores)
    age = torch.arange(time, 0, -1, device=prompt.k.device, dtype=state.scores.dtype)
    if initial is not None:
        state.scores += initial * decay**age
    for start in range(0, time, QUERIES):
        end = min(start + QUERIES, time)
        if gain * decay ** (time - end):  # what the last of them adds
            weights = gain * decay ** (age[start:end] - 1)
            rows = attention_rows(prompt, start, end)
            state.scores += policy.reduce_over_heads((rows * weights[:, None].to(rows.dtype)).sum(3))
    return policy.eviction_priority(state, prompt.k, time - 1)


def attention_rows(prompt: Prompt, start: int, end: int) -> Float[Tensor, "batch key_heads groups queries time"]:
    """Return the unpruned attention of the queries start, ..., end - 1, in single precision or the inputs' own."""
    q, k = prompt.q[:, :, start:end], prompt.k
    logits = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]) @ k.unsqueeze(2).transpose(-1, -2)
    later = torch.ones(end - start, k.shape[2], dtype=torch.bool, device=k.device).triu(start + 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.masked_fill(later, -torch.inf).softmax(-1)
