"""A KV cache that evicts keys step by step."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import AnyBudget, resolve_budget
from formerlab.cache.engines import load_numba, simulate_eviction
from formerlab.cache.eviction import CacheState, Eviction, Scores, decides_by_score
from formerlab.cache.kv import bytes_of
from formerlab.cache.policies.policy import (
    Policy,
    Prompt,
    at_least_float32,
    by_group,
    check_configuration,
    marked_indices,
)
from formerlab.cache.simulation import Simulation
from formerlab.errors import UserError
from formerlab.kernels import EMPTY_POSITION
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Start

INITIAL_SLOTS = 64
"""Smallest initial number of slots, unless the budget + 1 is smaller."""
SLOT_MULTIPLE = 16
"""The number of slots is a multiple of this number, so that slots fill vector registers."""
COMPILE_THRESHOLD = 2**15
"""Number of elements in the keys of a layer from which the compiled step is faster, including its loading time."""


@dataclass
class Store:
    """Keys and values of one layer in slots."""

    keys: Float[Tensor, "batch key_heads slots d_head"]
    values: Float[Tensor, "batch key_heads d_value slots"]
    """Channels-first layout, so that both attention products read contiguous memory."""
    state: CacheState
    budget: int
    """Cache budget of the layer in keys."""
    length: int = 0
    """Number of tokens so far, including evicted tokens."""
    sink_keys: list[KeyHeads] = field(default_factory=list)
    """The first keys at their original positions, for policies that rotate these keys again for every query."""
    step: Callable[[Heads, KeyHeads, KeyHeads, int, Scores | None], Heads] | None = None
    """The compiled step on the current buffers, or None for the torch step."""

    @property
    def slots(self) -> int:
        """Number of slots."""
        return self.keys.shape[2]

    def grow(self, slots: int) -> None:
        """Add empty slots up to a total of at least `slots`."""
        slots = -(-slots // SLOT_MULTIPLE) * SLOT_MULTIPLE
        added = slots - self.slots
        self.keys, self.values = F.pad(self.keys, (0, 0, 0, added)), F.pad(self.values, (0, added))
        self.state.grow(slots)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace sequence i by sequence `rows[i]` in place; raise ValueError if the batch size changes."""
        if len(rows) != len(self.keys):
            raise ValueError(f"reorder needs {len(self.keys)} indices, one per sequence, but got {len(rows)}")
        for buffer in (self.keys, self.values, self.state.positions, self.state.scores):
            buffer.copy_(buffer[rows])
        if self.state.vacant is not None:
            self.state.vacant = self.state.vacant[rows]
        self.sink_keys = [keys[rows] for keys in self.sink_keys]

    def advance(
        self, policy: Eviction, q: Heads, k: KeyHeads, v: KeyHeads, position: Start, initial: Scores | None
    ) -> Heads:
        """Write the token at `position` into an empty slot, evict if needed, and return its attention output."""
        slot = self.state.assign_slot(position)
        self._write(slot.expand(-1, k.shape[1], -1), k, v)
        queries, keys = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]), self.keys.unsqueeze(2)
        logits = (queries @ keys.transpose(-1, -2)).squeeze(3)
        empty = (self.state.positions == EMPTY_POSITION).unsqueeze(2)
        attention = logits.to(self.state.scores.dtype).masked_fill(empty, -torch.inf).softmax(-1)
        policy.rescore(self.state, attention, slot, initial)
        self.state.evict(position, policy.eviction_priority(self.state, self.keys, position))
        return (attention.unsqueeze(3).to(v.dtype) @ self.values.unsqueeze(2).transpose(-1, -2)).flatten(1, 2)

    def _write(self, slot: Int[Tensor, "batch key_heads 1"], k: KeyHeads, v: KeyHeads) -> None:
        """Write the key and the value of one token of every key-value head into a slot."""
        if torch.compiler.is_compiling():  # the compiler would copy whole buffers for `scatter_`
            batch, heads, channels = (torch.arange(size, device=k.device) for size in v.squeeze(2).shape)
            rows = batch[:, None], heads, slot.squeeze(2)
            self.keys.index_put_(rows, k.squeeze(2))
            self.values.index_put_((batch[:, None, None], heads[:, None], channels, slot), v.squeeze(2))
            return
        self.keys.scatter_(2, slot[..., None].expand_as(k), k)
        self.values.scatter_(3, slot[:, :, None].expand(-1, -1, v.shape[3], -1), v.transpose(-1, -2))


class PrunedCache:
    """An attention function with a KV cache that retains at most `budget` keys per key-value head between steps.

    With `Pyramid`, `budget` is a mean over layers; `Full` retains all keys. Processing a whole prompt in one call gives
    the same result as one call per token (except with protect="prompt", which protects the tokens of the first call),
    and the same outputs as `Simulation` with the same budget. A fraction refers to `length` tokens, by default the
    length of the prompt (the first call). The resulting count, at least one, stays constant while decoding. `position`
    is the model's position encoding; only policies that re-index the retained keys need it. The cache is for inference:
    gradients do not flow through it. All sequences of a batch have the same length.

    Raises UserError for a policy that needs attention to evicted keys, a one-shot policy, `HeadAdaptive`, an unsuitable
    `position` and an invalid budget. The first call raises UserError if it has a single token and the budget is a
    fraction without `length`, and if protect="prompt" protects a prompt that exceeds the budget.
    """

    def __init__(
        self, policy: Policy, budget: AnyBudget, position: PositionEncoding | None = None, *, length: int | None = None
    ) -> None:
        budget = check_configuration(policy, budget)
        self._layer_budget, policy = policy.layer_budget, policy.layer_policy
        if policy.is_ragged:
            raise UserError(f"{policy!r} evicts in simulation only; run it as a Simulation or as a CompressedCache")
        if not (isinstance(policy, Eviction) and policy.is_online):
            raise UserError(f"{policy!r} cannot evict: it needs attention to evicted keys; run it as a Simulation")
        self.policy = policy
        self.budget = budget
        self.position = policy.check_position(position)
        self._layers: dict[int, Store] = {}
        self._budget = 0
        """Budget of at least one key; 0 until the first call if the budget is a fraction of the prompt."""
        if isinstance(budget, int) or budget == 1.0 or length is not None:
            self._budget = max(1, resolve_budget(budget, length or 0))

    @torch.inference_mode(False)  # the buffers must stay writable outside inference mode
    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Add tokens, evict after each, and return the attention output over the keys that each query sees."""
        if not self._layers:
            self._begin(q.shape[2])
        if layer not in self._layers:
            if q.shape[2] > 1:
                return self._prune_prompt(layer, q, k, v)
            self._layers[layer] = self._empty(layer, 0, k, v)
        store = self._layers[layer]
        tokens = zip(*(torch.split(x, 1, 2) for x in (q, k, v)), strict=True)
        outputs = [self._step(layer, store, *token) for token in tokens]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)

    def _begin(self, length: int) -> None:
        """Resolve the budget and the protected tokens from the length of the prompt (the first call)."""
        if not self._budget:
            if length == 1:
                raise UserError(
                    f"budget {self.budget!r} is a fraction of a prompt of one token; give length, or a count of keys"
                )
            self._budget = max(1, resolve_budget(self.budget, length))
        if self.policy.sink > self._budget:  # only if the budget is a fraction and the prompt is short
            self.policy = self.policy.model_copy(update={"sink": self._budget})
        if self.policy.protect is not None:
            self.policy = self.policy.with_prompt_length(length)
            self.policy.check_budget(self._budget)
        self._sink = self.policy.protected(self._budget)[0] if self.policy.reindexes_positions else 0

    def _prune_prompt(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Prune a whole prompt by simulation and store the retained keys and values."""
        batch, time, budget = q.shape[0], q.shape[2], self._layer_budget(self._budget, layer)
        prompt = Prompt(q, k, v, [budget] * batch, [time] * batch, layer)
        out, last_query, scores = simulate_eviction(self.policy, prompt)
        if self.policy.reindexes_positions:  # recompute with new positions; the retained keys do not change
            out = Simulation(self.policy, budget, position=self.position)(layer, q, k, v)
        count = min(self.policy.capacity(budget), time)
        retained = marked_indices(last_query >= time, count)
        store = self._layers[layer] = self._empty(layer, count, k, v)
        store.keys[:, :, :count] = k.take_along_dim(retained[..., None], 2)
        store.values[..., :count] = v.take_along_dim(retained[..., None], 2).transpose(-1, -2)
        store.state.positions[..., :count], store.state.scores[..., :count] = retained, scores.gather(-1, retained)
        store.length, store.sink_keys = time, [k[:, :, : self._sink]]
        return out

    def _empty(self, layer: int, count: int, k: KeyHeads, v: KeyHeads) -> Store:
        """Return an empty store with at least `count` + 1 slots."""
        batch, key_heads, _, d_head = k.shape
        budget = self._layer_budget(self._budget, layer)
        state = self.policy.empty_state([budget] * batch, key_heads, 0, at_least_float32(k.new_empty(0)))
        keys, values = k.new_zeros(batch, key_heads, 0, d_head), v.new_zeros(batch, key_heads, v.shape[3], 0)
        store = Store(keys, values, state, budget)
        self._grow(store, max(count + 1, INITIAL_SLOTS))
        return store

    def _grow(self, store: Store, slots: int) -> None:
        """Add slots up to the budget + 1, and load the compiled step for the new buffers if they are large."""
        store.grow(min(slots, self.policy.capacity(store.budget) + 1))
        engine, same_widths = None, store.keys.shape[3] == store.values.shape[2]  # numba needs d_key = d_value
        large = store.keys.device.type == "cpu" and store.keys.numel() >= COMPILE_THRESHOLD
        if large and same_widths and decides_by_score(self.policy):
            engine = load_numba()
        if engine is not None and store.keys.dtype in engine.DTYPES:
            budgets = [store.budget] * store.keys.shape[0]
            store.step = engine.Step(self.policy, store.keys, store.values, store.state, budgets)

    def _step(self, layer: int, store: Store, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        position, capacity = store.length, self.policy.capacity(store.budget)
        needed = min(position, capacity) + 1
        if needed > store.slots:
            self._grow(store, max(needed, 2 * store.slots))
        if position < self._sink:
            store.sink_keys.append(k)
        if self._sink and position > capacity and self.position is not None:
            keys = torch.cat(store.sink_keys, 2)
            rotated = self.position.rotate(keys.flatten(1, 2).unsqueeze(2), position - capacity)
            slots = store.state.positions.topk(keys.shape[2], largest=False).indices.expand(-1, keys.shape[1], -1)
            store.keys.scatter_(2, slots[..., None].expand_as(keys), rotated.view_as(keys))
        store.length += 1
        return self.advance(layer, store, q, k, v, position)

    def advance(self, layer: int, store: Store, q: Heads, k: KeyHeads, v: KeyHeads, position: Start) -> Heads:
        """Add the token at `position` to a layer with an empty slot, evict, and return its attention output."""
        head_groups = store.state.positions.shape[1]
        initial = self.policy.cast_initial_scores(k, head_groups, layer, store.state.scores, position)
        if initial is not None:
            initial = initial.expand(k.shape[0], head_groups, 1)
        if store.step is not None and isinstance(position, int):
            return store.step(q, k, v, position, initial)
        return store.advance(self.policy, q, k, v, position, initial)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace sequence i by sequence `rows[i]`, as in beam search."""
        for store in self._layers.values():
            store.reorder(rows)

    @property
    def length(self) -> int:
        """Number of tokens so far, including evicted tokens; the next token has this position."""
        return min((store.length for store in self._layers.values()), default=0)

    @property
    def is_full(self) -> bool:
        """Whether all layers retain their budget and have one free slot, so that every new token evicts one key."""
        counts = [(store, self.policy.capacity(store.budget)) for store in self._layers.values()]
        return bool(counts) and all(count <= store.length and count < store.slots for store, count in counts)

    def kept(self, layer: int) -> Int[Tensor, "batch key_heads retained"]:
        """Return the positions of the layer's retained keys in ascending order."""
        store = self._layers[layer]
        positions = store.state.positions.sort(-1).values[..., : self._count(store)]
        return positions.expand(-1, store.keys.shape[1], -1)

    def _count(self, store: Store) -> int:
        """Return the number of keys that each head retains."""
        return min(store.length, self.policy.capacity(store.budget))

    def bytes(self) -> int:
        """Return the bytes of the keys and values retained between steps."""
        counts = ((store, self._count(store)) for store in self._layers.values())
        return sum(bytes_of(store.keys[:, :, :count], store.values[..., :count]) for store, count in counts)

    def metadata_bytes(self) -> int:
        """Return the bytes of scores and positions, which `bytes` does not include."""
        states = (store.state for store in self._layers.values())
        return sum(bytes_of(state.scores, state.positions) for state in states)
