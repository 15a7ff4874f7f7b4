"""The engine compiled by numba: from tensors to the kernel and back. Importing it imports numba."""

from typing import Any

import numba
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from formerlab.cache.eviction import Eviction, Pruned, coefficients, decides_by_score
from formerlab.cache.policies.policy import Prompt
from formerlab.cache.store import Store
from formerlab.kernels import pruned_attention_cpu
from formerlab.kernels.cache_state import Scores
from formerlab.layers.attention import Heads, KeyHeads

Array = NDArray[Any]
LARGE = 2**19  # numbers in a layer's buffers, from which on a second thread pays for its start


def supports(policy: Eviction, k: KeyHeads) -> bool:
    """Say whether the kernel can run a policy: its score must be decay S + gain p and decide alone."""
    return k.dtype in (torch.float32, torch.float64) and decides_by_score(policy)


def run(policy: Eviction, prompt: Prompt) -> Pruned:
    """Simulate eviction over whole sequences."""
    q, k, v = (x.detach() for x in (prompt.q, prompt.k, prompt.v))
    batch, heads, time, d_head = q.shape
    head_groups = 1 if policy.scope == "layer" else k.shape[1]
    out = v.new_empty(batch, time, heads, d_head).transpose(1, 2)
    last = torch.full((batch, head_groups, time), time, dtype=torch.int32)
    scores = v.new_zeros(batch, head_groups, time)
    initial = policy.entering(k, head_groups, prompt.layer, v)
    width = 0 if initial is None else time
    initial = (scores if initial is None else initial)[..., :width].expand(batch, head_groups, width).contiguous()
    most = min(max(policy.capacity(budget) for budget in prompt.budgets), time)
    pruned_attention_cpu.whole_sequences(
        _threads(batch * head_groups), _rule(policy, d_head), np.array(policy.bounds(prompt.budgets)),
        np.array(prompt.lengths), most,
        *(x.numpy() for x in (q, k, v, out)), *(_flat(x) for x in (initial, last, scores)),
    )  # fmt: skip
    return Pruned(out, last, scores)


class Step:
    """One token after another in a cache's own buffers; to be made anew when these grow."""

    def __init__(self, policy: Eviction, store: Store, budgets: list[int]) -> None:
        batch, _, capacity, d_head = store.keys.shape
        head_groups = store.state.positions.shape[1]
        self._units = batch * head_groups
        self._held = (
            store.keys.view(self._units, -1, capacity, d_head).numpy(),
            store.values.view(self._units, -1, d_head, capacity).numpy(),
            _flat(store.state.positions),
            _flat(store.state.scores),
        )
        self._rule, self._bounds = _rule(policy, d_head), np.array(policy.bounds(budgets))
        self._none = np.empty((self._units, 0), self._held[3].dtype)
        self._large = 2 * store.keys.numel() >= LARGE

    def __call__(self, q: Heads, k: KeyHeads, v: KeyHeads, now: int, initial: Scores | None) -> Heads:
        """Take in the token at position `now`; return what it finds."""
        out = q.new_empty(q.shape)
        first = self._none if initial is None else _flat(initial.contiguous())
        tensors = (x.numpy() for x in (q, k, v, out))
        parts = _threads(self._units if self._large else 1)
        pruned_attention_cpu.one_token(parts, self._rule, self._bounds, *tensors, first, *self._held, now)
        return out


def _rule(policy: Eviction, d_head: int) -> Array:
    return np.array([*(coefficients(policy) or (0.0, 0.0)), d_head**-0.5])


def _flat(x: Float[Tensor, "batch head_groups time"] | Int[Tensor, "batch head_groups time"]) -> Array:
    """Return the rows of all head groups, on the same memory."""
    rows: Array = x.flatten(0, 1).numpy()
    return rows


def _threads(units: int) -> int:
    """Let numba use as many threads as torch, and no more than there are units of work; return their number."""
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    threads = min(torch.get_num_threads(), units, most)
    numba.set_num_threads(threads)
    return threads


def _start_threads() -> None:
    """Start numba's threads, which may be torch's own OpenMP threads; their start must not change torch's number."""
    threads = torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(threads)


_start_threads()
