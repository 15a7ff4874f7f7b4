"""Step-by-step eviction: every query admits its own key, attends, and drops the worst key if there is one too many."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.policies.policy import Layer, Logits, Policy, Prompt, on_device, precise
from formerlab.kernels import EMPTY
from formerlab.layers.shapes import Heads

Scores = Float[Tensor, "batch head_groups slots"]
Positions = Int[Tensor, "batch head_groups slots"]
Chosen = Int[Tensor, "batch head_groups 1"]
Counts = Int[Tensor, "batch 1 1"]
Attention = Float[Tensor, "batch key_heads groups slots"]
Keys = Float[Tensor, "batch key_heads slots d_head"]
InitialScores = Float[Tensor, "batch head_groups 1"]
Times = Int[Tensor, " time"]
Entering = Float[Tensor, "#batch head_groups time"]
VECTOR = 16  # numbers; torch computes the softmax of shorter rows one number after another


@dataclass
class CacheState:
    """The keys that the heads of one layer hold. A head group (one query head, those of a key head, all) keeps one set.

    There are more slots than keys that may stay. A key that is evicted leaves its slot empty, and the next one takes
    it: one write, nothing is moved. The order of slots means nothing, since keys carry their positions with them.
    """

    positions: Positions
    """Position of the token in each slot, or EMPTY."""
    scores: Scores
    """Score of the token in each slot; that of an empty slot means nothing."""
    capacity: int | Counts
    """Keys that may stay between steps: of every sequence, or of all."""
    sink: int | Counts
    """First positions that are never evicted."""
    recent: int | Counts
    """Last positions that are not evicted yet."""
    least: int
    """Smallest of the capacities."""
    most: int
    """Largest of the capacities."""
    vacant: Chosen | None = None
    """An empty slot of every head group, where it is known."""

    def admit(self, position: int) -> Chosen:
        """Put the key at a position into an empty slot of every head group, and say which that is."""
        slot = self.positions.argmax(-1, keepdim=True) if self.vacant is None else self.vacant
        self.positions.scatter_(-1, slot, position)
        self.vacant = None
        return slot

    def evict(self, now: int, priority: Scores) -> Chosen | None:
        """Empty the slot of the lowest priority in every head group beyond its capacity; of equals the oldest goes.

        Candidates are the positions sink <= k <= now - recent, the query's own among them if recent is 0. Returns the
        emptied slots (one that was empty where a head group has room left), or None where all have room.
        """
        if now < self.least:
            return None
        unprotected = isinstance(self.sink, int) and isinstance(self.recent, int) and self.sink == self.recent == 0
        if not unprotected or self.positions.shape[-1] != self.least + 1:  # else every slot holds a candidate
            protected = self.positions > now - self.recent
            if not isinstance(self.sink, int) or self.sink:
                protected |= self.positions < self.sink
            priority = priority.masked_fill(protected, torch.inf)
        slot = self.positions.masked_fill(priority > priority.amin(-1, keepdim=True), EMPTY).argmin(-1, keepdim=True)
        if now < self.most:
            full = torch.as_tensor(now >= self.capacity, device=slot.device)
            slot = slot.where(full, self.positions.argmax(-1, keepdim=True))
        self.positions.scatter_(-1, slot, EMPTY)
        self.vacant = slot
        return slot

    def grow(self, capacity: int) -> None:
        """Add empty slots up to `capacity`."""
        missing = (0, capacity - self.positions.shape[-1])
        self.positions, self.scores = F.pad(self.positions, missing, value=EMPTY), F.pad(self.scores, missing)


class Pruned(NamedTuple):
    """The result of a pruned prompt."""

    out: Heads
    """softmax(q k^T / sqrt(d_head)) v over the keys that each query finds; rows of padding mean nothing."""
    last: Int[Tensor, "batch head_groups time"]
    """The last query that sees each key; no smaller than a sequence's length where the key is still held at its end."""
    scores: Float[Tensor, "batch head_groups time"]
    """Scores of the keys held at the end of a sequence without padding."""


class Eviction(Policy):
    """For q = 0, 1, ...: (1) the cache takes in q; (2) p = softmax over the keys it holds, evicted ones gone from the
    denominator; (3) S[k] = score(S[k], p[k]); (4) if it holds more than the budget, the key of the lowest S among
    sink <= k <= q - recent goes, and its score with it (Decay article, eq. 5; A2SF, arXiv:2407.20485, eq. 5 and 6).

    So a policy of this kind evicts at most one key per step, separately in all heads that choose together.
    """

    scope: Literal["group", "layer"] = "group"
    """Heads that choose together, by the sum of their attention: those that share a key head, or all of a layer."""

    @property
    def is_online(self) -> bool:
        """Each step needs past attention alone."""
        return True

    @property
    def linear(self) -> tuple[float, float] | None:
        """(decay, gain) of a `score` that is decay S + gain p in every slot, which compiled engines can run.

        None where it is not. A class that replaces `score` declares its own, or runs in torch.
        """
        return 1.0, 0.0

    def score(self, past: Scores, attention: Scores) -> Scores:
        """Return the scores after a step: `past` before it, `attention` received in it, summed over a head group."""
        return past

    def protected(self, budget: int) -> tuple[int, int]:
        """Return how many first and how many last positions are not evicted, at most `budget` together; here none."""
        return 0, 0

    def bounds(self, budgets: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for each budget the entries held and the first and last positions protected, as engines take them."""
        return [(min(self.capacity(budget), EMPTY), *self.protected(budget)) for budget in budgets]

    def initial_scores(self, positions: Times, head_groups: int, keys: Keys | None, layer: int) -> Entering | None:
        """Return the scores with which keys enter the cache; None means 0."""
        return None

    def entering(self, k: Keys, head_groups: int, layer: int, like: Tensor, start: int = 0) -> Tensor | None:
        """Return the scores with which the keys of positions start, start + 1, ... enter, with the type of `like`."""
        if type(self).initial_scores is Eviction.initial_scores:
            return None
        positions = torch.arange(start, start + k.shape[2], device=k.device)
        with torch.autocast(k.device.type, enabled=False):
            initial = self.initial_scores(positions, head_groups, k, layer)
        return None if initial is None else initial.to(like.dtype)

    def eviction_priority(self, state: CacheState, keys: Keys | None, now: int) -> Scores:
        """Return the priorities of an eviction after query `now`: scores, unless a policy compares the keys held."""
        return state.scores

    def reduce_over_heads(self, heads: Attention) -> Scores:
        """Sum over the heads that choose together."""
        if self.scope == "layer":
            return heads.sum((1, 2)).unsqueeze(1)
        return heads.sum(2) if heads.shape[2] > 1 else heads.squeeze(2)

    def empty_state(self, budgets: Sequence[int], key_heads: int, capacity: int, scores: Tensor) -> CacheState:
        """Return the empty state of sequences of the given budgets, with the type and device of `scores`."""
        shape = len(budgets), 1 if self.scope == "layer" else key_heads, capacity
        positions = torch.full(shape, EMPTY, dtype=torch.int32, device=scores.device)
        capacities, *protected = zip(*self.bounds(budgets), strict=True)
        held, sink, recent = (_count(counts, scores.device) for counts in (capacities, *protected))
        return CacheState(
            positions, scores.new_zeros(shape), held, sink, recent, least=min(capacities), most=max(capacities)
        )

    def rescore(self, state: CacheState, attention: Attention, own: Chosen, initial: InitialScores | None) -> None:
        """Score a query's attention to the slots; `own` is the slot of its key, `initial` its score until then."""
        state.scores.scatter_(-1, own, 0.0 if initial is None else initial)
        state.scores = self.score(state.scores, self.reduce_over_heads(attention))

    def trace(
        self, logits: Logits, budgets: Sequence[int], keys: Keys | None, layer: int
    ) -> tuple[Int[Tensor, "batch head_groups time"], Float[Tensor, "batch head_groups time"]]:
        """Take all queries in turn; return `last` and `scores` of `Pruned`. Logits of later keys are not read."""
        batch, key_heads, groups, time, _ = logits.shape
        logits = F.pad(precise(logits), (0, 1), value=-torch.inf)  # the last column takes evictions that do not happen
        capacity = max(min(max(map(self.capacity, budgets)), time) + 1, VECTOR)
        state = self.empty_state(budgets, key_heads, capacity, logits)
        head_groups = state.positions.shape[1]
        initial = self.initial_scores(torch.arange(time, device=logits.device), head_groups, keys, layer)
        start, held = None, None
        last = torch.full((batch, head_groups, time + 1), time, dtype=torch.int32, device=logits.device)
        for query in range(time):
            own = state.admit(query)
            if initial is not None:
                start = initial[..., query : query + 1].to(logits.dtype).expand(own.shape)
            columns = state.positions.clamp(max=time).long()
            index = columns[:, :, None].expand(-1, key_heads, groups, -1)
            attention = logits[:, :, :, query].gather(-1, index).softmax(-1)
            self.rescore(state, attention, own, start)
            if "keys" in self.needs and keys is not None:  # those of empty slots mean nothing
                held = keys.take_along_dim(columns.clamp(max=time - 1)[..., None], 2)
            slot = state.evict(query, self.eviction_priority(state, held, query))
            if slot is not None:
                last.scatter_(-1, columns.gather(-1, slot), query)
        scores = state.scores.new_zeros(last.shape).scatter_(-1, state.positions.clamp(max=time).long(), state.scores)
        return last[..., :time], scores[..., :time]

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        batch, key_heads, _, time, _ = layer.logits.shape
        last, _ = self.trace(layer.logits, layer.budgets, layer.keys, layer.index)
        return found(last).expand(batch, key_heads, time, time)


def found(last: Int[Tensor, "batch head_groups time"]) -> Bool[Tensor, "batch head_groups time time"]:
    """Return which keys each query finds, given the last query that sees each."""
    now = torch.arange(last.shape[-1], device=last.device)[:, None]
    return (now >= now.T) & (now <= last[:, :, None])


Engine = Callable[[Eviction, Prompt], Pruned]
"""A function that simulates step-by-step eviction over whole sequences."""


def _count(counts: Sequence[int], device: torch.device) -> int | Int[Tensor, "batch 1 1"]:
    """Return one number if all sequences have the same, since that compares faster."""
    if len(set(counts)) == 1:
        return counts[0]
    return on_device(counts, device).int()[:, None, None]


def coefficients(policy: Eviction) -> tuple[float, float] | None:
    """Return the policy's `linear`, or None where it does not hold for its whole rule.

    It does not where a subclass replaces `score` without its own `linear`, or how attention becomes scores.
    """
    bases = type(policy).__mro__
    declared, defined = (next(i for i, cls in enumerate(bases) if name in vars(cls)) for name in ("linear", "score"))
    if declared > defined or _replaces(policy, "rescore", "reduce_over_heads"):
        return None
    return policy.linear


def decides_by_score(policy: Eviction) -> bool:
    """Say whether a score of the form decay S + gain p decides alone, which is what compiled engines can run."""
    return coefficients(policy) is not None and not _replaces(policy, "eviction_priority", "empty_state", "trace")


def _replaces(policy: Eviction, *names: str) -> bool:
    """Say whether the policy has a method of its own in place of one of `Eviction`."""
    return any(getattr(type(policy), name) is not getattr(Eviction, name) for name in names)
