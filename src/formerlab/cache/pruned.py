"""The KV cache that really evicts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import entries
from formerlab.cache.eviction import Eviction, Slots
from formerlab.cache.policy import Policy, by_group, masked_softmax
from formerlab.errors import UserError
from formerlab.layers.attention import Heads, KeyHeads


@dataclass
class _Store:
    """Keys and values of one layer, slot by slot, and their books."""

    keys: Float[Tensor, "batch key_heads slots d_head"]
    values: Float[Tensor, "batch key_heads slots d_head"]
    slots: Slots
    limit: int
    """Keys that may stay between steps."""
    length: int = 0
    """Tokens taken in, evicted ones included."""

    @property
    def held(self) -> int:
        """Keys that stay between steps now."""
        return min(self.length, self.limit)

    def reserve(self, tokens: int) -> None:
        """Make room for more tokens: double, but never beyond the limit and the slot of the query's own key."""
        capacity = self.keys.shape[2]
        needed = min(self.length + tokens, self.limit) + 1
        if needed > capacity:
            room = min(max(needed, 2 * capacity), self.limit + 1) - capacity
            self.keys, self.values = F.pad(self.keys, (0, 0, 0, room)), F.pad(self.values, (0, 0, 0, room))
            self.slots.grow(capacity + room)

    def write(self, k: KeyHeads, v: KeyHeads) -> None:
        """Let the next position take the free slot: where a key was evicted, it is overwritten in place."""
        index = self.slots.free[..., None].expand_as(k)
        self.keys.scatter_(2, index, k)
        self.values.scatter_(2, index, v)
        self.slots.admit(self.length)


class PrunedCache:
    """An `attend` that holds at most `budget` keys and values per key head between steps.

    Several tokens at once are fed one by one, so a prompt is pruned while it is read; keys keep their original
    positions. The outputs are those of `Simulation` with the same count of entries. For inference: no gradient passes.
    All sequences of a batch have the same length.

    Raises UserError for a policy that cannot decide from what a cache holds, and for a budget that is a ratio, since
    the final length is not known while decoding.
    """

    def __init__(self, policy: Policy, budget: int | float) -> None:
        if not (isinstance(policy, Eviction) and policy.streams):
            raise UserError(
                f"{policy!r} cannot evict: it needs attention to keys that are gone or of queries still to come; "
                "run it as a Simulation"
            )
        if isinstance(budget, float):
            raise UserError(f"budget {budget!r}: a cache needs a count of entries; entries(ratio, length) gives it")
        self.policy = policy
        self.budget = entries(budget, 0)
        self._limit = policy.limit(self.budget)
        self._layers: dict[int, _Store] = {}

    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Feed the tokens one by one; return softmax(q k^T / sqrt(d_head)) v over the keys that each finds."""
        if layer not in self._layers:
            self._layers[layer] = self._empty(k, v)
        store = self._layers[layer]
        store.reserve(k.shape[2])
        tokens = (slice(i, i + 1) for i in range(k.shape[2]))
        return torch.cat([self._step(store, q[:, :, i], k[:, :, i], v[:, :, i]) for i in tokens], 2)

    def _empty(self, k: KeyHeads, v: KeyHeads) -> _Store:
        batch, key_heads, _, d_head = k.shape
        capacity = min(self._limit, 64) + 1
        scores = k.new_empty(0, dtype=torch.promote_types(k.dtype, torch.float32))
        slots = self.policy.slots([self.budget] * batch, key_heads, capacity, scores)
        shape = batch, key_heads, capacity, d_head
        return _Store(k.new_zeros(shape), v.new_zeros(shape), slots, self._limit)

    def _step(self, store: _Store, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        slots = store.slots
        store.write(k, v)
        scaled = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]).squeeze(3)
        probabilities = masked_softmax(scaled @ store.keys.transpose(-1, -2), slots.filled[:, :, None])
        slots.scores = self.policy.score(slots.scores, probabilities.sum(2))
        slots.evict(store.length)
        store.length += 1
        return (probabilities.to(v.dtype) @ store.values).flatten(1, 2).unsqueeze(2)

    @property
    def length(self) -> int:
        """Tokens taken in by every layer, evicted ones included: the position of the next one."""
        return min((store.length for store in self._layers.values()), default=0)

    def kept(self, layer: int) -> Int[Tensor, "batch key_heads kept"]:
        """Return the positions that the layer holds, ascending."""
        store = self._layers[layer]
        return store.slots.positions.sort(-1).values[..., : store.held]

    def bytes(self) -> int:
        """Bytes of the keys and values held between steps."""
        stores = self._layers.values()
        return sum(_bytes(store.keys[:, :, : store.held], store.values[:, :, : store.held]) for store in stores)

    def allocated_bytes(self) -> int:
        """Bytes of the buffers of keys and values, the slot of the query's own key and room to spare included."""
        return sum(_bytes(store.keys, store.values) for store in self._layers.values())

    def bookkeeping_bytes(self) -> int:
        """Bytes of the scores, positions and free slots, which come on top of keys and values."""
        books = (store.slots for store in self._layers.values())
        return sum(_bytes(slots.scores, slots.positions, slots.free) for slots in books)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
