"""Step-by-step eviction: every query admits its own key, attends, and drops the worst key if there is one too many."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.policies.policy import Layer, Policy, Prompt, on_device
from formerlab.kernels.cache_state import EMPTY, CacheState, Chosen, Positions
from formerlab.kernels.cache_state import Scores as Scores  # offered to policies
from formerlab.layers.attention import Heads

Attention = Float[Tensor, "batch key_heads groups slots"]
Keys = Float[Tensor, "batch key_heads slots d_head"]
InitialScores = Float[Tensor, "batch head_groups 1"]
LastQueries = Int[Tensor, "batch head_groups time_plus_1"]
Columns = Float[Tensor, "batch key_heads groups time columns"]


VECTOR = 16  # numbers; torch computes the softmax of shorter rows one number after another


class Rows(NamedTuple):
    """Queries of whole sequences, and what they meet."""

    start: int
    """Position of the first of them."""
    logits: Columns
    """Their logits: column k is that of position k; the last one, -inf, is that of no key. Those of later keys are not
    read."""
    probabilities: Columns | None
    """Zeros, which become what each query gives to each position."""
    initial_scores: Float[Tensor, "#batch head_groups all"] | None
    """The scores with which all keys of the sequences enter; none means 0."""
    keys: Keys | None
    """All keys, for policies that look at them."""


class Pruned(NamedTuple):
    """What came of a prompt."""

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

    scope: Literal["head", "group", "layer"] = "group"
    """Heads that choose together, by the sum of their attention: each query head alone, those that share a key head, or
    all heads of a layer."""

    @property
    def is_online(self) -> bool:
        """Each step needs the past alone."""
        return True

    def score(self, past: Scores, attention: Scores) -> Scores:
        """Return the scores after a step: `past` before it, `attention` received in it, summed over a head group.

        Here attention plays no part.
        """
        return past

    def protected(self, budget: int) -> tuple[int, int]:
        """Return how many first and how many last positions are not evicted, at most `budget` together; here none."""
        return 0, 0

    def bounds(self, budgets: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for each budget the entries held and the first and last positions protected, as engines take them."""
        return [(min(self.capacity(budget), EMPTY), *self.protected(budget)) for budget in budgets]

    def capacity(self, budget: int) -> int:
        """Return the keys that may stay between steps under a budget of `budget`."""
        return budget

    def initial_scores(
        self, positions: Int[Tensor, " time"], head_groups: int, keys: Keys | None, layer: int
    ) -> Float[Tensor, "#batch head_groups time"] | None:
        """Return the scores with which keys enter the cache; none means 0."""
        return None

    def entering(self, k: Keys, head_groups: int, layer: int, like: Tensor) -> Tensor | None:
        """Return the scores with which all keys of sequences enter, with the type of `like`; none means 0."""
        positions = torch.arange(k.shape[2], device=k.device)
        with torch.autocast(k.device.type, enabled=False):
            initial = self.initial_scores(positions, head_groups, k, layer)
        return None if initial is None else initial.to(like.dtype)

    def eviction_priority(self, state: CacheState, keys: Keys | None, now: int) -> Scores:
        """Return what decides the eviction after query `now`: the scores, unless the keys held are compared."""
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
        """Score a query's attention to the first slots; `own` is the slot of its key, `initial` its score until then.

        The other slots are empty.
        """
        if initial is None:
            state.scores.scatter_(-1, own, 0.0)
        else:
            state.scores.scatter_(-1, own, initial)
        received = self.reduce_over_heads(attention)
        if received.shape == state.scores.shape:
            state.scores = self.score(state.scores, received)
        else:
            first = state.scores[..., : received.shape[-1]]
            first.copy_(self.score(first, received))

    def _before_evictions(self, rows: Rows, state: CacheState) -> Float[Tensor, "queries batch key_heads groups slots"]:
        """Return the attention of the queries that see all keys before them, and take it to the probabilities.

        Keys lie in the slots in their order as long as none has gone.
        """
        start, shape = rows.start, rows.logits.shape
        end = max(start, min(state.least + 1, start + shape[3]))
        width = min(max(end, VECTOR), shape[-1])
        later = torch.ones(end - start, width, dtype=torch.bool, device=rows.logits.device).triu(start + 1)
        logits = rows.logits[:, :, :, : end - start, :width]
        attention = logits.masked_fill(later, -torch.inf).softmax(-1)[..., :end]
        if rows.probabilities is not None:
            rows.probabilities[:, :, :, : end - start, :end] = attention
        return attention.movedim(3, 0)

    def over(self, rows: Rows, state: CacheState, last: LastQueries) -> Iterator[int]:
        """Take the queries in turn; yield each one's position after scoring, before the eviction.

        In the end `last` notes the last query that sees each key where one was evicted; its final column takes what is
        no key.
        """
        shape, initial = rows.logits.shape, None
        evicted: list[Positions] = []
        whole = self._before_evictions(rows, state)
        places = torch.arange(state.positions.shape[-1], device=last.device).expand(state.positions.shape)
        for row in range(shape[3]):
            query = rows.start + row
            if row < len(whole):
                state.vacant = places[..., query : query + 1]
            own = state.admit(query)
            if rows.initial_scores is not None:
                initial = rows.initial_scores[..., query : query + 1].expand(own.shape)
            if row < len(whole):
                self.rescore(state, whole[row], own, initial)
            else:
                column = state.positions.clamp(max=shape[-1] - 1).long()
                index = column[:, :, None].expand(-1, shape[1], shape[2], -1)
                attention = rows.logits[:, :, :, row].gather(-1, index).softmax(-1)
                self.rescore(state, attention, own, initial)
                if rows.probabilities is not None:
                    rows.probabilities[:, :, :, row].scatter_(-1, index, attention)
            yield query
            gone = state.evict(query, self.eviction_priority(state, _held(rows.keys, state.positions), query))
            if gone is not None:
                evicted.append(gone.clamp(max=last.shape[-1] - 1))
        if evicted:
            queries = torch.arange(query + 1 - len(evicted), query + 1, dtype=last.dtype, device=last.device)
            positions = torch.cat(evicted, -1).long()
            last.scatter_(-1, positions, queries.expand(positions.shape))

    def walk(self, layer: Layer, last: LastQueries | None = None) -> Iterator[tuple[int, CacheState]]:
        """Yield (q, state) for every query q in turn: after scoring, before the eviction.

        The state then holds what q sees. It is changed in place: read, do not keep. `last` is filled as by `over`.
        """
        key_heads, time = layer.logits.shape[1], layer.logits.shape[3]
        precise = layer.logits.to(torch.promote_types(layer.logits.dtype, torch.float32))
        state = self.empty_state(
            layer.budgets, key_heads, min(max(map(self.capacity, layer.budgets)), time) + 1, precise
        )
        last = state.positions.new_zeros(*state.positions.shape[:2], time + 1) if last is None else last
        keys = layer.keys if "keys" in self.needs else None
        initial = self.initial_scores(
            torch.arange(time, device=precise.device), state.positions.shape[1], keys, layer.index
        )
        initial = None if initial is None else initial.to(precise.dtype)
        rows = Rows(0, F.pad(precise, (0, 1), value=-torch.inf), None, initial, keys)
        for query in self.over(rows, state, last):
            yield query, state

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the keys that each query finds in the cache, its own included."""
        batch, key_heads, _, time, _ = layer.logits.shape
        head_groups = 1 if self.scope == "layer" else key_heads
        last = torch.full((batch, head_groups, time + 1), time, dtype=torch.int32, device=layer.logits.device)
        for _ in self.walk(layer, last):
            pass
        now = torch.arange(time, device=last.device)[:, None]
        return (layer.causal & (now <= last[:, :, None, :time])).expand(batch, key_heads, time, time)


Engine = Callable[[Eviction, Prompt], Pruned]
"""What simulates step-by-step eviction over whole sequences."""


def _held(
    keys: Float[Tensor, "batch key_heads time d_head"] | None, positions: Int[Tensor, "batch head_groups slots"]
) -> Float[Tensor, "batch key_heads slots d_head"] | None:
    """Return the keys in the slots; those of empty slots mean nothing."""
    if keys is None:
        return None
    index = positions.clamp(max=keys.shape[2] - 1).long()[..., None]
    return keys.gather(2, index.expand(-1, keys.shape[1], -1, keys.shape[3]))


def _count(counts: Sequence[int], device: torch.device) -> int | Int[Tensor, "batch 1 1"]:
    """Return one number where all sequences have the same, which is faster to compare with."""
    if len(set(counts)) == 1:
        return counts[0]
    return on_device(counts, device).int()[:, None, None]


@functools.lru_cache(maxsize=256)
def coefficients(policy: Eviction) -> tuple[float, float] | None:
    """Return (decay, gain) if the policy's score is decay S + gain p in every slot, read off its formula; else nothing.

    A policy states its formula once, in torch. It is asked for the scores of (1, 0) and (0, 1), and of a few numbers
    that a formula of another form would not map as these two say.
    """
    past = torch.tensor([[[1.0, 0.0, 0.0, 0.31, 2.7, 5.9, 1e-3]]], dtype=torch.float64)
    attention = torch.tensor([[[0.0, 1.0, 0.0, 0.83, 0.07, 3.1, 0.4]]], dtype=torch.float64)
    scores = policy.score(past, attention)
    decay, gain = scores[0, 0, 0].item(), scores[0, 0, 1].item()
    return (decay, gain) if torch.allclose(scores, decay * past + gain * attention, rtol=1e-12, atol=0) else None


def decides_by_score(policy: Eviction) -> bool:
    """Say whether a score of the form decay S + gain p decides alone, which is what compiled engines can run."""
    return type(policy).eviction_priority is Eviction.eviction_priority and coefficients(policy) is not None
