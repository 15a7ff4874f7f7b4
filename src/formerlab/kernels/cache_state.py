"""The state of a cache: which position lies in which slot, and its score."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

EMPTY = 2**30
"""The position of an empty slot: later than any query, so it is neither seen nor a candidate."""

Scores = Float[Tensor, "batch head_groups slots"]
Positions = Int[Tensor, "batch head_groups slots"]
Counts = Int[Tensor, "batch 1 1"]
Chosen = Int[Tensor, "batch head_groups 1"]


@dataclass
class CacheState:
    """What the heads of one layer hold. A head group, a query head or those of a key head or all, keeps the same keys.

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
        positions that were there (EMPTY where a head group has room left), or nothing where all have.
        """
        if now < self.least:
            return None
        if not self._all_candidates:
            protected = self.positions > now - self.recent
            if not isinstance(self.sink, int) or self.sink:
                protected |= self.positions < self.sink
            priority = priority.masked_fill(protected, torch.inf)
        slot = self.positions.masked_fill(priority > priority.amin(-1, keepdim=True), EMPTY).argmin(-1, keepdim=True)
        if now < self.most:
            full = torch.as_tensor(now >= self.capacity, device=slot.device)
            slot = slot.where(full, self.positions.argmax(-1, keepdim=True))
        gone = self.positions.gather(-1, slot)
        self.positions.scatter_(-1, slot, EMPTY)
        self.vacant = slot
        return gone

    @property
    def _all_candidates(self) -> bool:
        """Whether no slot is empty or protected when one has to go."""
        unprotected = isinstance(self.sink, int) and isinstance(self.recent, int) and self.sink == self.recent == 0
        return unprotected and self.positions.shape[-1] == self.least + 1

    def grow(self, capacity: int) -> None:
        """Add empty slots up to `capacity`."""
        missing = (0, capacity - self.positions.shape[-1])
        self.positions, self.scores = F.pad(self.positions, missing, value=EMPTY), F.pad(self.scores, missing)
