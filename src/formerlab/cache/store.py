"""Keys and values of one layer in slots, with their state, and the attention of a block of queries to them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.eviction import CacheState, Eviction, Scores
from formerlab.cache.policies.policy import by_group
from formerlab.kernels import EMPTY
from formerlab.layers.attention import Heads, KeyHeads

SIMD = 16
"""Slots are counted in vectors of the machine, so that no loop has a remainder."""


@dataclass
class Store:
    """Keys and values of one layer, slot by slot, and how far the layer has read."""

    keys: Float[Tensor, "batch key_heads slots d_head"]
    values: Float[Tensor, "batch key_heads d_head slots"]
    """Channel by channel: both products of attention then sum over what lies side by side."""
    state: CacheState
    length: int = 0
    """Tokens taken in, evicted ones included."""
    sink: list[KeyHeads] = field(default_factory=list)
    """The first keys as they came, where they are turned anew for every query."""
    step: Callable[[Heads, KeyHeads, KeyHeads, int, Scores | None], Heads] | None = None
    """The compiled step on the buffers as they are, where there is one."""

    @staticmethod
    def empty(policy: Eviction, budgets: list[int], capacity: int, k: KeyHeads, v: KeyHeads) -> "Store":
        """Return a store of at least `capacity` slots."""
        batch, key_heads, _, d_head = k.shape
        capacity = -(-capacity // SIMD) * SIMD
        keys = k.new_zeros(batch, key_heads, capacity, d_head)
        values = v.new_zeros(batch, key_heads, v.shape[3], capacity)
        scores = k.new_empty(0, dtype=torch.promote_types(k.dtype, torch.float32))
        return Store(keys, values, policy.empty_state(budgets, key_heads, capacity, scores))

    @property
    def capacity(self) -> int:
        """Slots."""
        return self.keys.shape[2]

    def grow(self, capacity: int) -> None:
        """Add empty slots up to at least `capacity`."""
        capacity = -(-capacity // SIMD) * SIMD
        room = capacity - self.capacity
        self.keys, self.values = F.pad(self.keys, (0, 0, 0, room)), F.pad(self.values, (0, room))
        self.state.grow(capacity)

    def fill(
        self,
        kept: Int[Tensor, "batch head_groups kept"],
        k: KeyHeads,
        v: KeyHeads,
        scores: Float[Tensor, "batch head_groups time"],
    ) -> None:
        """Take over the tokens of a prompt at the positions `kept`, which an empty store has slots for."""
        count = kept.shape[-1]
        index = kept.expand(-1, k.shape[1], -1)[..., None]
        self.keys[:, :, :count] = k.gather(2, index.expand(-1, -1, -1, k.shape[3]))
        self.values[..., :count] = v.gather(2, index.expand(-1, -1, -1, v.shape[3])).transpose(-1, -2)
        self.state.positions[..., :count] = kept
        self.state.scores[..., :count] = scores.gather(-1, kept)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace sequence i by sequence `rows[i]`, in the same memory."""
        for held in (self.keys, self.values, self.state.positions, self.state.scores):
            held.copy_(held[rows])
        if self.state.vacant is not None:
            self.state.vacant = self.state.vacant[rows]
        self.sink = [keys[rows] for keys in self.sink]

    def replace_first(self, keys: KeyHeads) -> None:
        """Replace the keys at the first positions."""
        first = self.state.positions.topk(keys.shape[2], largest=False).indices.expand(-1, keys.shape[1], -1)
        self.keys.scatter_(2, first[..., None].expand_as(keys), keys)

    def advance(self, policy: Eviction, q: Heads, k: KeyHeads, v: KeyHeads, now: int, initial: Scores | None) -> Heads:
        """Take in the token at position `now`, for which there must be an empty slot; return its attention output."""
        taken = self.state.admit(now)
        into = taken.expand(-1, k.shape[1], -1)
        self.keys.scatter_(2, into[..., None].expand_as(k), k)
        self.values.scatter_(3, into[:, :, None].expand(-1, -1, v.shape[3], -1), v.transpose(-1, -2))
        queries, keys = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]), self.keys.unsqueeze(2)
        logits = (queries @ keys.transpose(-1, -2)).squeeze(3)
        empty = (self.state.positions == EMPTY).unsqueeze(2)
        logits = logits.to(self.state.scores.dtype).masked_fill(empty, -torch.inf)
        attention = logits.softmax(-1)
        policy.rescore(self.state, attention, taken, initial)
        self.state.evict(now, policy.eviction_priority(self.state, self.keys, now))
        return (attention.unsqueeze(3).to(v.dtype) @ self.values.unsqueeze(2).transpose(-1, -2)).flatten(1, 2)
