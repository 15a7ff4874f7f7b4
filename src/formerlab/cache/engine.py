"""Engines simulate step-by-step eviction over whole sequences: fused on a GPU, compiled, or this loop everywhere."""

import functools
import logging
from types import ModuleType

import torch

from formerlab import kernels
from formerlab.cache.eviction import Engine, Eviction, Pruned, decides_by_score, found
from formerlab.cache.policies.policy import Prompt, by_group, masked_softmax

log = logging.getLogger(__name__)

WORTHWHILE = 2**17
"""Pairs of query and held key, over a batch and its heads, from which on loading compiled code pays."""


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
    """Simulate eviction over whole sequences in torch: anywhere, and for every policy."""
    q, k, v = prompt.q, prompt.k, prompt.v
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        logits = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]) @ k.unsqueeze(2).transpose(-1, -2)
        last, scores = policy.trace(logits, prompt.budgets, k, prompt.layer)
        attention = masked_softmax(logits, found(last).unsqueeze(2)).to(v.dtype)
        return Pruned((attention @ v.unsqueeze(2)).flatten(1, 2), last, scores)
