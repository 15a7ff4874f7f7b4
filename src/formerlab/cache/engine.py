"""Engines simulate step-by-step eviction over whole sequences: fused on a GPU, compiled, or this loop everywhere."""

import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import torch
from torch import Tensor

from formerlab import kernels
from formerlab.cache.eviction import VECTOR, Engine, Eviction, Pruned, Rows, decides_by_score
from formerlab.cache.policies.policy import Prompt, by_group

log = logging.getLogger(__name__)

WORTHWHILE = 2**17
"""Pairs of query and held key, over a batch and its heads, from which on loading compiled code pays."""
QUERIES = 64
"""Queries whose logits against all keys are held at a time."""


def choose(policy: Eviction, prompt: Prompt) -> Engine:
    """Return the engine for a prompt: the fused one on a GPU, the compiled one on a CPU where that pays, else torch."""
    engine, heads = None, prompt.q.shape[1]
    if prompt.q.is_cuda:
        engine = load_fused()
    elif prompt.q.device.type == "cpu":
        counts = zip(prompt.budgets, prompt.lengths, strict=True)
        pairs = heads * sum(length * min(policy.capacity(budget), length) for budget, length in counts)
        engine = load_compiled() if pairs >= WORTHWHILE else None
    if engine is None or prompt.k.dtype not in engine.DTYPES or not decides_by_score(policy):
        return run
    chosen: Engine = engine.run
    return chosen


@functools.cache
def load_compiled() -> ModuleType | None:
    """Return the compiled engine, or nothing where numba is missing; which one it is is logged once."""
    try:
        from formerlab.cache import compiled
    except ImportError as error:
        log.info("pruned attention runs in torch: %s", error)
        return None
    log.info("pruned attention on the CPU runs compiled by numba, with %d threads", torch.get_num_threads())
    return compiled


def load_fused() -> ModuleType | None:
    """Return the engine of GPUs, or nothing where Triton is missing."""
    if not kernels.usable("pruned attention"):
        return None
    from formerlab.cache import fused

    return fused


def run(policy: Eviction, prompt: Prompt) -> Pruned:
    """Simulate eviction over whole sequences; on the CPU each thread takes some of them."""
    batch = len(prompt.lengths)
    threads = min(torch.get_num_threads(), batch) if prompt.q.device.type == "cpu" else 1
    if threads == 1:
        return _simulate(policy, prompt)
    rows = [slice(batch * part // threads, batch * (part + 1) // threads) for part in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda some: _simulate(policy, prompt.of(some)), rows))
    return Pruned(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


@torch.no_grad()
def _simulate(policy: Eviction, prompt: Prompt) -> Pruned:
    with torch.autocast(prompt.q.device.type, enabled=False):  # alike in all threads
        return _in_blocks(policy, prompt)


def _in_blocks(policy: Eviction, prompt: Prompt) -> Pruned:
    groups, time = prompt.q.shape[1] // prompt.k.shape[1], prompt.q.shape[2]
    q, k, v = by_group(prompt.q, groups), prompt.k, prompt.v.unsqueeze(2)
    keys = k.new_empty(*k.shape[:2], time + 1, k.shape[3])  # one more, which stands for no key
    torch.mul(k, k.shape[3] ** -0.5, out=keys[:, :, :time])
    keys[:, :, time] = 0
    precise = torch.promote_types(q.dtype, torch.float32)
    capacity = max(min(max(policy.capacity(budget) for budget in prompt.budgets), time) + 1, VECTOR)
    state = policy.empty_state(prompt.budgets, k.shape[1], capacity, q.new_empty(0, dtype=precise))
    batch, head_groups, _ = state.positions.shape
    last = torch.full((batch, head_groups, time + 1), time, dtype=torch.int32, device=q.device)
    initial = policy.entering(k, head_groups, prompt.layer, state.scores)
    looked_at = k if "keys" in policy.needs else None
    out: list[Tensor] = []
    for first in range(0, time, QUERIES):
        end = min(first + QUERIES, time)
        logits = (q[:, :, :, first:end] @ keys[:, :, None, : end + 1].transpose(-1, -2)).to(precise)
        logits[..., -1] = -torch.inf
        rows = Rows(first, logits, torch.zeros_like(logits), initial, looked_at)
        policy.step_through(rows, state, last)
        assert rows.probabilities is not None
        out.append(rows.probabilities[..., :-1].to(v.dtype) @ v[..., :end, :])
    scores = state.scores.new_zeros(batch, head_groups, time + 1)
    scores.scatter_(-1, state.positions.clamp(max=time).long(), state.scores)
    return Pruned((out[0] if len(out) == 1 else torch.cat(out, 3)).flatten(1, 2), last[..., :time], scores[..., :time])
