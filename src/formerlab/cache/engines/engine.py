"""Which engine simulates step-by-step eviction over whole sequences: fused on a GPU, compiled, or torch everywhere."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from formerlab import kernels
from formerlab.cache.eviction import Eviction
from formerlab.layers.attention import Heads, KeyHeads

log = logging.getLogger(__name__)

WORTHWHILE = 2**17
"""Pairs of query and held key, over a batch and its heads, from which on loading compiled code pays."""


@dataclass(frozen=True)
class Prompt:
    """Whole right-padded sequences as one layer meets them."""

    q: Heads
    k: KeyHeads
    v: KeyHeads
    budgets: list[int]
    """Budget of each sequence."""
    lengths: list[int]
    """True length of each sequence."""
    layer: int = 0

    def of(self, rows: slice) -> "Prompt":
        """Return some of the sequences."""
        q, k, v = self.q[rows], self.k[rows], self.v[rows]
        return Prompt(q, k, v, self.budgets[rows], self.lengths[rows], self.layer)

    def for_scope(self, scope: Literal["head", "group", "layer"]) -> "Prompt":
        """Give every query head keys of its own where each chooses alone."""
        groups = self.q.shape[1] // self.k.shape[1]
        if scope != "head" or groups == 1:
            return self
        return replace(self, k=self.k.repeat_interleave(groups, 1), v=self.v.repeat_interleave(groups, 1))


class Pruned(NamedTuple):
    """What came of a prompt."""

    out: Heads
    """softmax(q k^T / sqrt(d_head)) v over the keys that each query finds; rows of padding mean nothing."""
    last: Int[Tensor, "batch head_groups time"]
    """The last query that sees each key; no smaller than a sequence's length where the key is still held at its end."""
    scores: Float[Tensor, "batch head_groups time"]
    """Scores of the keys held at the end of a sequence without padding."""


Engine = Callable[[Eviction, Prompt], Pruned]


def choose(policy: Eviction, prompt: Prompt) -> Engine:
    """Return the engine for a prompt: the fused one on a GPU, the compiled one on a CPU where that pays, else torch."""
    from formerlab.cache.engines import loop

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
