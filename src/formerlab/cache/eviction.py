"""Step-by-step eviction: every query admits its own key, attends, and drops the worst key if there is one too many."""

import functools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.policy import Layer, Policy
from formerlab.cache.slots import EMPTY, Positions, Scores, Slots

BLOCK = 16  # queries that meet the keys in one product; a longer block meets more keys that are gone in its middle
Attention = Float[Tensor, "batch key_heads groups slots"]
Keys = Float[Tensor, "batch key_heads slots d_head"]
LastQueries = Int[Tensor, "batch sets time_plus_1"]


class Block(NamedTuple):
    """Queries at positions start, start + 1, ... that attend and evict in turn."""

    start: int
    logits: Float[Tensor, "time batch key_heads groups slots"]
    """Their logits against every slot, -inf where they do not see it; each row becomes probabilities, in place."""
    taken: Int[Tensor, "batch sets time"]
    """The slots of their own keys."""
    entry: Float[Tensor, "batch sets time"] | None = None
    """The scores with which these enter; none means 0."""
    keys: Keys | None = None
    """The keys in the slots."""


class Rows(NamedTuple):
    """Queries of whole sequences, and what they meet."""

    start: int
    """Position of the first of them."""
    logits: Float[Tensor, "batch key_heads groups time columns"]
    """Their logits: column k is that of position k; those of later keys are never read, nor is the last column, which
    stands for no key."""
    entry: Float[Tensor, "#batch sets all"] | None
    """The scores with which all keys of the sequences enter; none means 0."""
    keys: Keys | None
    """All keys, for policies that look at them."""


class Eviction(Policy):
    """A policy that evicts at most one key per step, separately in every set of heads that choose together.

    For q = 0, 1, ...: (1) the cache takes in q; (2) p = softmax over the keys it holds, evicted ones gone from the
    denominator; (3) S[k] = score(S[k], p[k]); (4) if it holds more than the budget, the key of the lowest S among
    sink <= k <= q - recent goes, and its score with it (Decay article, eq. 5; A2SF, arXiv:2407.20485, eq. 5 and 6).
    """

    scope: Literal["head", "group", "layer"] = "group"
    """Heads that choose together, by the sum of their attention: each query head alone, those that share a key head, or
    all heads of a layer."""

    @property
    def streams(self) -> bool:
        """Each step needs the past alone."""
        return True

    @abstractmethod
    def score(self, past: Scores, attention: Scores) -> Scores:
        """Return the scores after a step: `past` before it, `attention` received in it, summed over a set's heads."""

    @abstractmethod
    def protected(self, entries: int) -> tuple[int, int]:
        """Return how many first and how many last positions are not evicted; together at most `entries`."""

    def limit(self, entries: int) -> int:
        """Return the keys that may stay between steps under a budget of `entries`."""
        return entries

    def entry(
        self, positions: Int[Tensor, " time"], sets: int, keys: Keys | None, layer: int
    ) -> Float[Tensor, "#batch sets time"] | None:
        """Return the scores with which keys enter the cache; none means 0."""
        return None

    def rank(self, slots: Slots, keys: Keys | None, now: int) -> Scores:
        """Return what decides the eviction after query `now`: the scores, unless the keys held are compared."""
        return slots.scores

    def together(self, heads: Attention) -> Scores:
        """Sum over the heads that choose together."""
        if self.scope == "layer":
            return heads.sum((1, 2)).unsqueeze(1)
        return heads.sum(2) if heads.shape[2] > 1 else heads.squeeze(2)

    def slots(self, entries: Sequence[int], key_heads: int, capacity: int, scores: Tensor) -> Slots:
        """Return empty books for sequences of the given budgets, with the type and device of `scores`."""
        limits = [min(self.limit(budget), EMPTY) for budget in entries]
        bounds = zip(limits, *zip(*(self.protected(budget) for budget in entries), strict=True), strict=True)
        shape = len(entries), 1 if self.scope == "layer" else key_heads, capacity
        positions = torch.full(shape, EMPTY, dtype=torch.int32, device=scores.device)
        held, sink, recent = (_count(counts, scores.device) for counts in zip(*bounds, strict=True))
        return Slots(positions, scores.new_zeros(shape), held, sink, recent, least=min(limits), most=max(limits))

    def steps(self, slots: Slots, block: Block, last: LastQueries | None = None) -> Iterator[int]:
        """Take the queries of a block in turn; yield each one's position after scoring, before the eviction.

        In the end `last` notes the last query that sees each key where it was evicted; its final column takes what is
        no key.
        """
        start, logits, taken, entry, keys = block
        complete = min(max(slots.least + 1 - start, 0), len(logits))  # queries from which nothing is hidden
        logits[:complete] = logits[:complete].softmax(-1)
        evicted: list[Positions] = []
        for row in range(len(logits)):
            query, own = start + row, slice(row, row + 1)
            if row >= complete:
                logits[row] = logits[row].softmax(-1)
            if entry is None:
                slots.scores.scatter_(-1, taken[..., own], 0.0)
            else:
                slots.scores.scatter_(-1, taken[..., own], entry[..., own])
            slots.scores = self.score(slots.scores, self.together(logits[row]))
            yield query
            gone = slots.evict(query, self.rank(slots, keys, query))
            if gone is not None:
                slot, position = gone
                evicted.append(position)
                ahead = logits[row + 1 :]
                ahead.scatter_(-1, slot[:, :, None].expand(*ahead.shape[:-1], 1), -torch.inf)
        if evicted and last is not None:
            queries = torch.arange(start + len(logits) - len(evicted), start + len(logits), device=last.device)
            gone_at = torch.cat(evicted, -1).clamp(max=last.shape[-1] - 1).long()
            last.scatter_(-1, gone_at, queries.to(last.dtype).expand(gone_at.shape))

    def over(self, prompt: Rows, slots: Slots, start: int, count: int, last: LastQueries) -> Iterator[int]:
        """Take `count` queries from position `start` on in turn, as `steps` does, given their logits by position.

        Afterwards the rows hold probabilities.
        """
        taken = slots.append(start, count)
        rows = prompt.logits[:, :, :, start - prompt.start : start - prompt.start + count].movedim(3, 0)
        key_heads, nothing = rows.shape[2], rows.shape[-1] - 1
        column = slots.positions.clamp(max=nothing).long().expand(-1, key_heads, -1)
        index = column[:, :, None].expand(*rows.shape[:-1], -1)
        entry = None if prompt.entry is None else prompt.entry[..., start : start + count].expand_as(taken)
        keys = prompt.keys
        if keys is not None:
            held = column.clamp(max=keys.shape[2] - 1)[..., None]
            keys = keys.gather(2, held.expand(*column.shape, keys.shape[-1]))
        now = torch.arange(start, start + count, dtype=torch.int32, device=rows.device)
        later = slots.positions[:, :, None] > now[:, None, None, None, None]
        logits = rows.gather(-1, index).masked_fill_(later, -torch.inf)
        yield from self.steps(slots, Block(start, logits, taken, entry, keys), last)
        rows.zero_().scatter_(-1, index, logits)

    def walk(self, layer: Layer, block: int = 1, last: LastQueries | None = None) -> Iterator[tuple[int, Slots]]:
        """Yield (q, books) for every query q in turn: after scoring, before the eviction.

        The books then hold what q sees, and the keys of the same block. They are changed in place: read, do not keep.
        `last` is filled as by `steps`.
        """
        entries: list[int] = layer.entries.tolist()
        key_heads, time = layer.logits.shape[1], layer.logits.shape[3]
        precise = layer.logits.to(torch.promote_types(layer.logits.dtype, torch.float32))
        rows = F.pad(precise, (0, 1))
        slots = self.slots(entries, key_heads, min(max(map(self.limit, entries)), time) + block, precise)
        last = slots.positions.new_zeros(*slots.positions.shape[:2], time + 1) if last is None else last
        keys = layer.keys if "keys" in self.needs else None
        entry = self.entry(torch.arange(time, device=rows.device), slots.positions.shape[1], keys, layer.index)
        prompt = Rows(0, rows, None if entry is None else entry.to(rows.dtype), keys)
        for start in range(0, time, block):
            for query in self.over(prompt, slots, start, min(block, time - start), last):
                yield query, slots

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the keys that each query finds in the cache, its own included."""
        batch, key_heads, _, time, _ = layer.logits.shape
        sets = 1 if self.scope == "layer" else key_heads
        last = torch.full((batch, sets, time + 1), time, dtype=torch.int32, device=layer.logits.device)
        for _ in self.walk(layer, BLOCK, last):
            pass
        now = torch.arange(time, device=last.device)[:, None]
        return (layer.causal & (now <= last[:, :, None, :time])).expand(batch, key_heads, time, time)


def _count(counts: Sequence[int], device: torch.device) -> int | Int[Tensor, "batch 1 1"]:
    """Return one number where all sequences have the same, which is faster to compare with."""
    if len(set(counts)) == 1:
        return counts[0]
    return torch.tensor(counts, dtype=torch.int32, device=device)[:, None, None]


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
