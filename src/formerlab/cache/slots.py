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
    it: one write, nothing is moved. The order of slots means nothing, since keys carry their positions with them; where
    no keys and values are stored, they can be put in order.
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
    ordered: bool = False
    """Whether positions ascend from slot to slot, empty ones aside."""

    @property
    def filled(self) -> Bool[Tensor, "batch sets slots"]:
        """Slots that hold a key."""
        return self.positions != EMPTY

    def admit(self, position: int) -> Chosen:
        """Put the key at a position into the first empty slot of every set, and say which that is."""
        taken = self.positions.argmax(-1, keepdim=True)
        self.positions.scatter_(-1, taken, position)
        self.ordered = False
        return taken

    def append(self, start: int, count: int) -> Int[Tensor, "batch sets count"]:
        """Order the slots by position, put the keys at positions start, start + 1, ... behind, and say where."""
        self.positions, order = self.positions.sort(-1)
        self.scores = self.scores.gather(-1, order)
        places = torch.arange(count, device=order.device)
        now = (places + start).to(self.positions.dtype)
        taken = self.filled.sum(-1, keepdim=True) + places
        self.positions.scatter_(-1, taken, now.expand(taken.shape))
        self.ordered = True
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
        if not self.ordered:  # the first of the lowest is not the oldest
            rank = self.positions.masked_fill(rank > rank.amin(-1, keepdim=True), EMPTY)
        slot = rank.argmin(-1, keepdim=True)
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
