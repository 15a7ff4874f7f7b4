"""The numba engine: call the CPU kernel of pruned attention with torch tensors. This module imports numba."""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from formerlab.cache.eviction import CacheState, Eviction, EvictionResult, Scores, coefficients
from formerlab.cache.policies.policy import Prompt
from formerlab.kernels import pruned_attention_cpu
from formerlab.layers.shapes import Heads, KeyHeads

DTYPES = (torch.float32, torch.float64)
THREADING_THRESHOLD = 2**19
"""Number of elements in the buffers of a layer from which a second thread is faster."""


def run(policy: Eviction, prompt: Prompt) -> EvictionResult:
    """Simulate eviction over a whole prompt."""
    q, k, v = (x.detach().contiguous() for x in (prompt.q, prompt.k, prompt.v))  # numba compiles once per layout
    batch, _, time, d_head = q.shape
    head_groups = 1 if policy.scope == "layer" else k.shape[1]
    out = torch.empty_like(q)
    last_query = torch.full((batch, head_groups, time), time, dtype=torch.int32)
    scores = v.new_zeros(batch, head_groups, time)
    initial = policy.cast_initial_scores(k, head_groups, prompt.layer, v)
    width = 0 if initial is None else time
    initial = (scores if initial is None else initial)[..., :width].expand(batch, head_groups, width).contiguous()
    capacity = min(max(policy.capacity(budget) for budget in prompt.budgets), time)
    pruned_attention_cpu.simulate_sequences(
        _threads(batch * head_groups), _coefficients(policy, d_head), np.array(policy.bounds(prompt.budgets)),
        np.array(prompt.lengths), capacity,
        *(x.numpy() for x in (q, k, v, out)), *(x.flatten(0, 1).numpy() for x in (initial, last_query, scores)),
    )  # fmt: skip
    return EvictionResult(out, last_query, scores)


class Step:
    """The decoding step on the current buffers of a cache."""

    def __init__(self, policy: Eviction, keys: Tensor, values: Tensor, state: CacheState, budgets: list[int]) -> None:
        batch, _, slots, d_head = keys.shape
        self._caches = batch * state.positions.shape[1]
        self._tensors = (
            keys.view(self._caches, -1, slots, d_head),
            values.view(self._caches, -1, d_head, slots),
            state.positions.flatten(0, 1),
            state.scores.flatten(0, 1),
        )
        self._arrays = tuple(tensor.numpy() for tensor in self._tensors)
        self._coefficients, self._limits = _coefficients(policy, d_head), np.array(policy.bounds(budgets))
        self._no_initial_scores = np.empty((self._caches, 0), self._arrays[3].dtype)
        self._multithreaded = 2 * keys.numel() >= THREADING_THRESHOLD

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the numpy arrays from copies, because copied arrays do not share memory with copied tensors."""
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _arrays=tuple(tensor.numpy() for tensor in state["_tensors"]))

    def __call__(self, q: Heads, k: KeyHeads, v: KeyHeads, position: int, initial: Scores | None) -> Heads:
        """Add the token at `position` and return its attention output."""
        out = torch.empty(q.shape, dtype=q.dtype)
        initial_scores = self._no_initial_scores if initial is None else initial.contiguous().flatten(0, 1).numpy()
        tensors = (x.contiguous().numpy() for x in (q, k, v, out))
        threads = _threads(self._caches if self._multithreaded else 1)
        pruned_attention_cpu.process_token(
            threads, self._coefficients, self._limits, *tensors, initial_scores, *self._arrays, position
        )
        return out


def _coefficients(policy: Eviction, d_head: int) -> pruned_attention_cpu.Array:
    return np.array([*(coefficients(policy) or (0.0, 0.0)), d_head**-0.5])


def _threads(caches: int) -> int:
    """Set numba's threads to torch's number, at most NUMBA_NUM_THREADS and one per cache (head group of a sequence)."""
    max_threads: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    threads = min(torch.get_num_threads(), caches, max_threads)
    numba.set_num_threads(threads)
    return threads


# Starting numba's threads may change torch's number of threads, because both can use OpenMP.
_torch_threads = torch.get_num_threads()
numba.set_num_threads(1)
torch.set_num_threads(_torch_threads)
