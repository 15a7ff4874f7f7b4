"""The engine compiled by numba: from tensors to the kernel and back. Importing it imports numba."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from formerlab.cache.engines.engine import Prompt, Pruned
from formerlab.cache.eviction import Eviction, coefficients, decides_by_score
from formerlab.cache.store import Store
from formerlab.kernels import pruned_attention_cpu
from formerlab.kernels.cache_state import EMPTY, Scores
from formerlab.kernels.parallel_for import together
from formerlab.kernels.pruned_attention_data import Held, Rule
from formerlab.kernels.simd import LANES, Strided
from formerlab.layers.attention import Heads, KeyHeads

Array = NDArray[Any]
LARGE = 2**19  # numbers in a layer's buffers, from which on a second thread pays for its start
CHUNKS = 4  # per thread, so that one with short sequences can take over from the others


def supports(policy: Eviction, k: KeyHeads) -> bool:
    """Say whether the kernel can run a policy: its score must be decay S + gain p and decide alone."""
    return k.dtype in (torch.float32, torch.float64) and decides_by_score(policy)


def run(policy: Eviction, prompt: Prompt) -> Pruned:
    """Simulate eviction over whole sequences."""
    q, k, v = (x.detach() for x in (prompt.q, prompt.k, prompt.v))
    batch, heads, time, d_head = q.shape
    sets = 1 if policy.scope == "layer" else k.shape[1]
    out = v.new_empty(batch, time, heads, d_head).transpose(1, 2)
    last = torch.full((batch, sets, time), time, dtype=torch.int32)
    scores = v.new_zeros(batch, sets, time)
    entry = policy.entry(torch.arange(time), sets, k, prompt.layer)
    entry = v.new_empty(batch, sets, 0) if entry is None else entry.to(v.dtype).expand(batch, sets, time).contiguous()
    share = heads // k.shape[1]
    capacity = min(max(policy.limit(budget) for budget in prompt.entries), time)
    shape = sets, heads // sets, share, d_head, capacity
    tensors = tuple(_strided(x) for x in (q, k, v, out))
    arrays = _bounds(policy, prompt.entries), np.array(prompt.lengths), _flat(entry), _flat(last), _flat(scores)
    _in_threads(
        batch * sets,
        lambda first, end: pruned_attention_cpu.whole_sequences(
            first, end, _rule(policy, d_head), shape, tensors, *arrays
        ),
    )
    return Pruned(out, last, scores)


class Step:
    """One token after another in a cache's own buffers; to be made anew when these grow."""

    def __init__(self, policy: Eviction, store: Store, entries: list[int], heads: int) -> None:
        batch, key_heads, d_head, capacity = store.keys.shape
        sets = store.slots.positions.shape[1]
        self._units = batch * sets
        self._held = Held(
            store.keys.view(self._units, -1, d_head, capacity).numpy(),
            store.values.view(self._units, -1, capacity, d_head).numpy(),
            _flat(store.slots.positions),
            _flat(store.slots.scores),
        )
        self._rule, self._bounds = _rule(policy, d_head), _bounds(policy, entries)
        self._shape = sets, heads // sets, heads // key_heads, d_head, capacity
        self._none = np.empty((self._units, 0), self._held.scores.dtype)
        self._large = 2 * store.keys.numel() >= LARGE

    @staticmethod
    def supports(policy: Eviction, k: KeyHeads) -> bool:
        """Say whether the kernel can work in the buffers themselves, which asks for whole vectors of channels."""
        return supports(policy, k) and k.shape[-1] % LANES == 0

    def __call__(self, q: Heads, k: KeyHeads, v: KeyHeads, now: int, entry: Scores | None) -> Heads:
        """Take in the token at position `now`; return what it finds."""
        out = q.new_empty(q.shape)
        tensors = _token(q), _token(k), _token(v), _token(out)
        own = self._none if entry is None else _flat(entry.contiguous())
        rest = self._rule, self._shape, tensors, self._bounds, self._held, own, now
        if self._large:
            _in_threads(self._units, lambda first, end: pruned_attention_cpu.one_token(first, end, *rest))
        else:
            pruned_attention_cpu.one_token(0, self._units, *rest)
        return out


def _token(x: Float[Tensor, "batch heads one d_head"]) -> Strided:
    """Return one token of every sequence; most are contiguous, which makes this the cheaper way."""
    _, heads, _, d_head = x.shape
    return Strided(x.reshape(-1).numpy(), heads * d_head, d_head, 0)


def _rule(policy: Eviction, d_head: int) -> Rule:
    decay, gain = coefficients(policy) or (0.0, 0.0)
    return Rule(decay, gain, d_head**-0.5)


def _bounds(policy: Eviction, entries: list[int]) -> Array:
    return np.array([(min(policy.limit(budget), EMPTY), *policy.protected(budget)) for budget in entries])


def _flat(x: Float[Tensor, "batch sets time"] | Int[Tensor, "batch sets time"]) -> Array:
    """Return the rows of all sets, on the same memory."""
    rows: Array = x.flatten(0, 1).numpy()
    return rows


def _strided(x: Float[Tensor, "batch heads time d_head"]) -> Strided:
    x = x if x.stride(-1) == 1 else x.contiguous()
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return Strided(x.as_strided((span,), (1,)).numpy(), *x.stride()[:3])


def _in_threads(units: int, run: Callable[[int, int], None]) -> None:
    """Run units 0, 1, ... in parts, in as many threads as torch may use."""
    threads = min(torch.get_num_threads(), units)
    parts = min(CHUNKS * threads, units) if threads > 1 else 1
    bounds = iter([(units * part // parts, units * (part + 1) // parts) for part in range(parts)])

    def work() -> None:
        for first, end in bounds:
            run(first, end)

    together(work, threads)
