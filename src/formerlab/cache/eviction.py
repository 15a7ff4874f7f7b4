"""Step-by-step eviction: every query admits its own key, attends, and drops the worst key if there is one too many."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.policy import Layer, Policy

EMPTY = 2**62  # the position of an empty slot: later than any query, so never a candidate; exact as a float, for F.pad
Scores = Float[Tensor, "batch key_heads slots"]


@dataclass
class Slots:
    """The books of one layer: which position lies in which slot, and its score.

    There are budget + 1 slots. The key that is evicted leaves a free slot, which the next key takes: one write, nothing
    is moved. The order of slots means nothing, since keys carry their positions with them.
    """

    positions: Int[Tensor, "batch key_heads slots"]
    """Position of the token in each slot, or EMPTY."""
    scores: Scores
    """Accumulated score of the token in each slot."""
    free: Int[Tensor, "batch key_heads 1"]
    """The slot of the next key."""
    entries: Int[Tensor, "batch 1 1"]
    """Keys that may stay between steps."""
    sink: Int[Tensor, "batch 1 1"]
    """First positions that are never evicted."""
    recent: Int[Tensor, "batch 1 1"]
    """Last positions that are not evicted yet."""

    @property
    def filled(self) -> Bool[Tensor, "batch key_heads slots"]:
        """Slots that hold a key."""
        return self.positions != EMPTY

    def admit(self, now: int) -> None:
        """Put the key at position `now` into the free slot, with no score yet."""
        self.positions.scatter_(-1, self.free, now)
        self.scores.scatter_(-1, self.free, 0.0)

    def evict(self, now: int) -> None:
        """Free the slot of the lowest score where a cache holds more than its entries; of equal scores the older loses.

        Candidates are the positions sink <= k <= now - recent, the query's own among them if recent is 0.
        """
        candidate = (self.positions >= self.sink) & (self.positions <= now - self.recent)
        scores = self.scores.where(candidate, torch.inf)
        lowest = scores == scores.amin(-1, keepdim=True)
        oldest = self.positions.where(lowest, EMPTY).argmin(-1, keepdim=True)
        self.free = oldest.where(now >= self.entries, now + 1)
        self.positions.scatter_(-1, self.free, EMPTY)

    def grow(self, capacity: int) -> None:
        """Add empty slots up to `capacity`."""
        missing = (0, capacity - self.positions.shape[-1])
        self.positions, self.scores = F.pad(self.positions, missing, value=EMPTY), F.pad(self.scores, missing)


class Eviction(Policy):
    """A policy that evicts at most one key per step, separately in every layer and key head.

    For q = 0, 1, ...: (1) the cache takes in q; (2) p = softmax over the keys it holds, evicted ones gone from the
    denominator; (3) S[k] = score(S[k], p[k]); (4) if it holds more than the budget, the key of the lowest S among
    sink <= k <= q - recent goes, and its score with it (Decay article, eq. 5; A2SF, arXiv:2407.20485, eq. 5 and 6).
    """

    @property
    def streams(self) -> bool:
        """Each step needs the past alone."""
        return True

    @abstractmethod
    def score(self, past: Scores, attention: Scores) -> Scores:
        """Return the scores after a step: `past` before it, `attention` received in it, summed over each group."""

    @abstractmethod
    def protected(self, entries: int) -> tuple[int, int]:
        """Return how many first and how many last positions are not evicted; together at most `entries`."""

    def limit(self, entries: int) -> int:
        """Return the keys that may stay between steps under a budget of `entries`."""
        return entries

    def slots(self, entries: Sequence[int], key_heads: int, capacity: int, scores: Tensor) -> Slots:
        """Return empty books for sequences of the given budgets, with the type and device of `scores`."""
        protected = torch.tensor([self.protected(budget) for budget in entries], device=scores.device)
        shape = len(entries), key_heads, capacity
        return Slots(
            positions=torch.full(shape, EMPTY, device=scores.device),
            scores=scores.new_zeros(shape),
            free=torch.zeros(*shape[:2], 1, dtype=torch.long, device=scores.device),
            entries=torch.tensor([self.limit(budget) for budget in entries], device=scores.device)[:, None, None],
            sink=protected[:, 0, None, None],
            recent=protected[:, 1, None, None],
        )

    def walk(self, layer: Layer) -> Iterator[tuple[int, Slots]]:
        """Yield (q, books) for every query q in turn: after scoring, before the eviction.

        The books then hold what q sees. They are changed in place: read, do not keep.
        """
        entries: list[int] = layer.entries.tolist()
        _, key_heads, groups, time, _ = layer.logits.shape
        precise = layer.logits.new_empty(0, dtype=torch.promote_types(layer.logits.dtype, torch.float32))
        capacity = min(max(self.limit(budget) for budget in entries), time) + 1
        slots = self.slots(entries, key_heads, capacity, precise)
        for now in range(time):
            slots.admit(now)
            row = F.pad(layer.logits[:, :, :, now, : now + 1].to(precise.dtype), (0, 1), value=-torch.inf)
            index = slots.positions.clamp(max=now + 1)  # an empty slot reads the -inf behind the last key
            attention = row.gather(-1, index[:, :, None].expand(-1, -1, groups, -1)).softmax(-1).sum(2)
            slots.scores = self.score(slots.scores, attention)
            yield now, slots
            slots.evict(now)

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the keys that each query finds in the cache, its own included."""
        batch, key_heads, _, time, _ = layer.logits.shape
        seen = torch.zeros(batch, key_heads, time, time + 1, dtype=torch.bool, device=layer.logits.device)
        for now, slots in self.walk(layer):
            seen[:, :, now].scatter_(-1, slots.positions.clamp(max=time), True)
        return seen[..., :time]
