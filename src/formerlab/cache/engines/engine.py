"""Which engine simulates step-by-step eviction over whole sequences: fused on a GPU, compiled, or torch everywhere."""

import functools
import logging
from types import ModuleType

import torch

from formerlab import kernels
from formerlab.cache.engines import loop
from formerlab.cache.eviction import Engine, Eviction
from formerlab.cache.policies.policy import Prompt

log = logging.getLogger(__name__)

WORTHWHILE = 2**17
"""Pairs of query and held key, over a batch and its heads, from which on loading compiled code pays."""


def choose(policy: Eviction, prompt: Prompt) -> Engine:
    """Return the engine for a prompt: the fused one on a GPU, the compiled one on a CPU where that pays, else torch."""
    engine = None
    if prompt.q.is_cuda:
        engine = load_fused()
    elif prompt.q.device.type == "cpu" and work(policy, prompt) >= WORTHWHILE:
        engine = load_compiled()
    if engine is None or not engine.supports(policy, prompt.k):
        return loop.run
    run: Engine = engine.run
    return run


def work(policy: Eviction, prompt: Prompt) -> int:
    """Return the pairs of query and held key."""
    heads = prompt.q.shape[1]
    return heads * sum(
        length * min(policy.capacity(budget), length)
        for budget, length in zip(prompt.budgets, prompt.lengths, strict=True)
    )


@functools.cache
def load_compiled() -> ModuleType | None:
    """Return the compiled engine, or nothing where numba is missing; which one it is is logged once."""
    try:
        from formerlab.cache.engines import compiled
    except ImportError as error:
        log.info("pruned attention runs in torch: %s", error)
        return None
    log.info("pruned attention on the CPU runs compiled by numba, with %d threads", torch.get_num_threads())
    return compiled


def load_fused() -> ModuleType | None:
    """Return the engine of GPUs, or nothing where Triton is missing."""
    if not kernels.usable("pruned attention"):
        return None
    from formerlab.cache.engines import on_gpu

    return on_gpu
