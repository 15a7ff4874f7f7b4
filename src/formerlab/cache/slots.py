"""The books of a cache: which position lies in which slot, and its score."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

EMPTY = 2**30
"""The position of an empty slot: later than any query, so it is neither seen nor a candidate."""

Scores = Float[Tensor, "batch sets slots"]
Positions = Int[Tensor, "batch sets slots"]
Counts = Int[Tensor, "batch 1 1"]
Chosen = Int[Tensor, "batch sets 1"]


@dataclass
class Slots:
    """What the heads of one layer hold. A set is kept by one query head, by those of a key head, or by the whole layer.

    There are more slots than keys that may stay. A key that is evicted leaves its slot empty, and the next one takes
    it: one write, nothing is moved. The order of slots means nothing, since keys carry their positions with them.
    """

    positions: Positions
    """Position of the token in each slot, or EMPTY."""
    scores: Scores
    """Score of the token in each slot; that of an empty slot means nothing."""
    entries: int | Counts
    """Keys that may stay between steps: of every sequence, or of all."""
    sink: int | Counts
    """First positions that are never evicted."""
    recent: int | Counts
    """Last positions that are not evicted yet."""
    least: int
    """Smallest of the entries."""
    most: int
    """Largest of the entries."""

    @property
    def filled(self) -> Bool[Tensor, "batch sets slots"]:
        """Slots that hold a key."""
        return self.positions != EMPTY

    def admit(self, start: int, count: int) -> Int[Tensor, "batch sets count"]:
        """Put the keys at positions start, start + 1, ... into the first empty slots, and say which these are."""
        if count == 1:
            taken = self.positions.argmax(-1, keepdim=True)
        else:
            taken = self.filled.to(torch.uint8).argsort(dim=-1, stable=True)[..., :count]
        now = torch.arange(start, start + count, dtype=self.positions.dtype, device=self.positions.device)
        self.positions.scatter_(-1, taken, now.expand(taken.shape))
        return taken

    def evict(self, now: int, rank: Scores) -> tuple[Chosen, Chosen] | None:
        """Empty the slot of the lowest rank in every set that holds more than its entries; of equals the oldest goes.

        Candidates are the positions sink <= k <= now - recent, the query's own among them if recent is 0. Returns the
        slots and the positions that were there (EMPTY where a set has room left), or nothing where all sets have.
        """
        if now < self.least:
            return None
        protected = self.positions > now - self.recent
        if not isinstance(self.sink, int) or self.sink:
            protected |= self.positions < self.sink
        rank = rank.masked_fill(protected, torch.inf)
        slot = self.positions.masked_fill(rank > rank.amin(-1, keepdim=True), EMPTY).argmin(-1, keepdim=True)
        if now < self.most:
            full = torch.as_tensor(now >= self.entries, device=slot.device)
            slot = slot.where(full, self.positions.argmax(-1, keepdim=True))
        gone = self.positions.gather(-1, slot)
        self.positions.scatter_(-1, slot, EMPTY)
        return slot, gone

    def grow(self, capacity: int) -> None:
        """Add empty slots up to `capacity`."""
        missing = (0, capacity - self.positions.shape[-1])
        self.positions, self.scores = F.pad(self.positions, missing, value=EMPTY), F.pad(self.scores, missing)
