"""Step-by-step eviction: each query adds its key, attends, and evicts the key of lowest score if the cache is full.

A head group is a set of heads that retain the same keys: the query heads of a key-value head (GQA group), or all heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.policies.policy import LayerInputs, Logits, Prompt, Protecting, at_least_float32, on_device
from formerlab.kernels import EMPTY_POSITION
from formerlab.layers.shapes import Heads, Start

Scores = Float[Tensor, "batch head_groups slots"]
Positions = Int[Tensor, "batch head_groups slots"]
Slot = Int[Tensor, "batch head_groups 1"]
Counts = Int[Tensor, "batch 1 1"]
Attention = Float[Tensor, "batch key_heads heads_per_kv_head slots"]
Keys = Float[Tensor, "batch key_heads slots d_head"]
InitialScores = Float[Tensor, "batch head_groups 1"]
Times = Int[Tensor, " time"]
PromptScores = Float[Tensor, "#batch head_groups time"]
MIN_SLOTS = 16
"""Smallest number of slots; torch's softmax does not vectorise shorter rows."""


@dataclass
class CacheState:
    """Positions and scores of the retained keys of one layer, one set per head group.

    A new key is written into the slot of an evicted key, so the order of the slots has no meaning.
    """

    positions: Positions
    """Position of the token in each slot, or EMPTY_POSITION."""
    scores: Scores
    """Score of the token in each slot; undefined for empty slots."""
    capacity: int | Counts
    """Largest number of retained keys: one number for all sequences, or one per sequence."""
    sink: int | Counts
    """Number of first positions that are never evicted."""
    recent: int | Counts
    """Number of last positions that are not evicted."""
    min_capacity: int
    """Smallest capacity of a sequence in the batch."""
    max_capacity: int
    """Largest capacity of a sequence in the batch."""
    vacant: Slot | None = None
    """An empty slot of every head group, if known."""

    def assign_slot(self, position: Start) -> Slot:
        """Assign an empty slot of every head group to the key at this position, and return the slots."""
        slot = self.positions.argmax(-1, keepdim=True) if self.vacant is None else self.vacant
        write(self.positions, slot, position)
        self.vacant = None
        return slot

    def evict(self, query: Start, priority: Scores) -> Slot | None:
        """Evict the key of lowest priority in every head group beyond its capacity; ties evict the oldest key.

        `query` is the position of the newest token. Candidates are the positions sink <= k <= query - recent, including
        the query's own key if recent is 0. Returns one empty slot per head group: the slot of the evicted key, or any
        empty slot if nothing was evicted. Returns None if no sequence exceeds its capacity. If `query` is a tensor, the
        cache must be full.
        """
        if isinstance(query, int) and query < self.min_capacity:
            return None
        unprotected = isinstance(self.sink, int) and isinstance(self.recent, int) and self.sink == self.recent == 0
        if not unprotected or self.positions.shape[-1] != self.min_capacity + 1:  # otherwise every slot is a candidate
            protected = self.positions > query - self.recent
            if not isinstance(self.sink, int) or self.sink:
                protected |= self.positions < self.sink
            priority = priority.masked_fill(protected, torch.inf)
        is_higher = priority > priority.amin(-1, keepdim=True)
        slot = self.positions.masked_fill(is_higher, EMPTY_POSITION).argmin(-1, keepdim=True)
        if isinstance(query, int) and query < self.max_capacity:
            full = torch.as_tensor(query >= self.capacity, device=slot.device)
            slot = slot.where(full, self.positions.argmax(-1, keepdim=True))
        write(self.positions, slot, EMPTY_POSITION)
        self.vacant = slot
        return slot

    def grow(self, slots: int) -> None:
        """Add empty slots up to a total of `slots`."""
        padding = (0, slots - self.positions.shape[-1])
        self.positions, self.scores = F.pad(self.positions, padding, value=EMPTY_POSITION), F.pad(self.scores, padding)


def write(buffer: Tensor, slot: Slot, value: int | float | Tensor) -> None:
    """Write a value into one slot of every head group, in place."""
    if torch.compiler.is_compiling():  # the compiler would copy the whole buffer for `scatter_`
        buffer.copy_(torch.where(torch.arange(buffer.shape[-1], device=slot.device) == slot, value, buffer))
    elif isinstance(value, Tensor):
        buffer.scatter_(-1, slot, value.to(buffer.dtype).expand_as(slot))
    else:
        buffer.scatter_(-1, slot, value)


class EvictionResult(NamedTuple):
    """The result of simulated eviction over a prompt."""

    out: Heads
    """softmax(q k^T / sqrt(d_head)) v over the keys that each query sees; undefined for padding."""
    last_query: Int[Tensor, "batch head_groups time"]
    """Index of the last query that sees each key; at least the sequence length for keys retained at the end."""
    scores: Float[Tensor, "batch head_groups time"]
    """Scores of the retained keys after the last query; valid only if the sequence is not padded."""


class Eviction(Protecting):
    """For q = 0, 1, ...: (1) add key q to the cache; (2) p = softmax over the retained keys; (3) S[k] = score(S[k],
    p[k]); (4) if the cache has more keys than the budget, evict the key of lowest S among sink <= k <= q - recent
    (Decay article, eq. 5; A2SF, arXiv:2407.20485, eq. 5 and 6).

    At most one key is evicted per step and head group.
    """

    scope: Literal["group", "layer"] = "group"
    """Head group over which attention is summed: a GQA group, or all heads of the layer."""

    @property
    def is_online(self) -> bool:
        """Whether each step needs only attention to retained keys; False for H2O's official masks, and for a class that
        overrides `visible` without `is_online`.
        """
        return not _overridden_below(self, "is_online", "visible")

    @property
    def linear(self) -> tuple[float, float] | None:
        """(decay, gain) if `score` is decay * S + gain * p in every slot, as compiled engines require; otherwise None.

        A class that overrides only `score` runs in the torch engine.
        """
        return 1.0, 0.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        """Return the new scores, given the past scores and the attention of the step, summed over a head group."""
        return past

    def bounds(self, budgets: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return (capacity, protected first positions, protected last positions) for each budget, for the engines."""
        return [(min(self.capacity(budget), EMPTY_POSITION), *self.protected(budget)) for budget in budgets]

    def initial_scores(self, positions: Times, head_groups: int, keys: Keys | None, layer: int) -> PromptScores | None:
        """Return the initial scores of the keys at these positions; None means 0."""
        return None

    def cast_initial_scores(
        self, k: Keys, head_groups: int, layer: int, like: Tensor, start: Start = 0
    ) -> Tensor | None:
        """Return `initial_scores` of the keys at positions start, start + 1, ... in the dtype of `like`."""
        if type(self).initial_scores is Eviction.initial_scores:
            return None
        positions = start + torch.arange(k.shape[2], device=k.device)
        with torch.autocast(k.device.type, enabled=False):
            initial = self.initial_scores(positions, head_groups, k, layer)
        return None if initial is None else initial.to(like.dtype)

    def eviction_priority(self, state: CacheState, keys: Keys | None, query: Start) -> Scores:
        """Return the priorities for the eviction after position `query`; the key of lowest priority is evicted."""
        return state.scores

    def reduce_over_heads(self, heads: Attention) -> Scores:
        """Sum attention over the heads of each head group."""
        if self.scope == "layer":
            return heads.sum((1, 2)).unsqueeze(1)
        return heads.sum(2) if heads.shape[2] > 1 else heads.squeeze(2)

    def empty_state(self, budgets: Sequence[int], key_heads: int, slots: int, scores: Tensor) -> CacheState:
        """Return the empty state for sequences with these budgets, with the dtype and device of `scores`."""
        shape = len(budgets), 1 if self.scope == "layer" else key_heads, slots
        positions = torch.full(shape, EMPTY_POSITION, dtype=torch.int32, device=scores.device)
        capacities, *protected = zip(*self.bounds(budgets), strict=True)
        capacity_tensor, sink, recent = (_limit(counts, scores.device) for counts in (capacities, *protected))
        limits = min(capacities), max(capacities)
        return CacheState(positions, scores.new_zeros(shape), capacity_tensor, sink, recent, *limits)

    def rescore(self, state: CacheState, attention: Attention, slot: Slot, initial: InitialScores | None) -> None:
        """Update the scores with a query's attention; `slot` and `initial` are the slot and first score of its key."""
        write(state.scores, slot, 0.0 if initial is None else initial)
        state.scores = self.score(state.scores, self.reduce_over_heads(attention))

    def trace(
        self, logits: Logits, budgets: Sequence[int], keys: Keys | None, layer: int
    ) -> tuple[Int[Tensor, "batch head_groups time"], Float[Tensor, "batch head_groups time"]]:
        """Simulate eviction query by query; return the fields `last_query` and `scores` of `EvictionResult`."""
        batch, key_heads, heads_per_kv_head, time, _ = logits.shape
        logits = F.pad(at_least_float32(logits), (0, 1), value=-torch.inf)  # the last column is for empty slots
        slots = max(min(max(map(self.capacity, budgets)), time) + 1, MIN_SLOTS)
        state = self.empty_state(budgets, key_heads, slots, logits)
        head_groups = state.positions.shape[1]
        initial = self.initial_scores(torch.arange(time, device=logits.device), head_groups, keys, layer)
        first_score, slot_keys = None, None
        last_query = torch.full((batch, head_groups, time + 1), time, dtype=torch.int32, device=logits.device)
        for query in range(time):
            query_slot = state.assign_slot(query)
            if initial is not None:
                first_score = initial[..., query : query + 1].to(logits.dtype).expand(query_slot.shape)
            columns = state.positions.clamp(max=time).long()
            index = columns[:, :, None].expand(-1, key_heads, heads_per_kv_head, -1)
            attention = logits[:, :, :, query].gather(-1, index).softmax(-1)
            self.rescore(state, attention, query_slot, first_score)
            if "keys" in self.needs and keys is not None:  # `slot_keys` is undefined for empty slots
                slot_keys = keys.take_along_dim(columns.clamp(max=time - 1)[..., None], 2)
            slot = state.evict(query, self.eviction_priority(state, slot_keys, query))
            if slot is not None:
                last_query.scatter_(-1, columns.gather(-1, slot), query)
        columns = state.positions.clamp(max=time).long()
        scores = state.scores.new_zeros(last_query.shape).scatter_(-1, columns, state.scores)
        return last_query[..., :time], scores[..., :time]

    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        batch, key_heads, _, time, _ = layer.logits.shape
        last_query, _ = self.trace(layer.logits, layer.budgets, layer.keys, layer.index)
        return visible_mask(last_query).expand(batch, key_heads, time, time)


def visible_mask(last_query: Int[Tensor, "batch head_groups time"]) -> Bool[Tensor, "batch head_groups time time"]:
    """Return the mask of keys that each query sees, given the last query that sees each key."""
    query = torch.arange(last_query.shape[-1], device=last_query.device)[:, None]
    return (query >= query.T) & (query <= last_query[:, :, None])


Engine = Callable[[Eviction, Prompt], EvictionResult]
"""A function that simulates step-by-step eviction over a whole prompt."""


def _limit(counts: Sequence[int], device: torch.device) -> int | Int[Tensor, "batch 1 1"]:
    """Return a number if all counts are equal, for faster comparisons, otherwise a tensor."""
    if len(set(counts)) == 1:
        return counts[0]
    return on_device(counts, device).int()[:, None, None]


def coefficients(policy: Eviction) -> tuple[float, float] | None:
    """Return the policy's `linear`, or None if its class overrides `score` without `linear`, or overrides `rescore` or
    `reduce_over_heads`.
    """
    if _overridden_below(policy, "linear", "score") or _overrides(policy, "rescore", "reduce_over_heads"):
        return None
    return policy.linear


def decides_by_score(policy: Eviction) -> bool:
    """Return whether eviction depends only on a score decay * S + gain * p, which compiled engines can compute."""
    return coefficients(policy) is not None and not _overrides(policy, "eviction_priority", "empty_state", "trace")


def _overridden_below(policy: Eviction, declaration: str, method: str) -> bool:
    """Return whether `method` is overridden in a more derived class than `declaration`, so that the declaration may not
    describe the method.
    """
    bases = type(policy).__mro__
    declared, defined = (next(i for i, cls in enumerate(bases) if name in vars(cls)) for name in (declaration, method))
    return defined < declared


def _overrides(policy: Eviction, *names: str) -> bool:
    return any(getattr(type(policy), name) is not getattr(Eviction, name) for name in names)
