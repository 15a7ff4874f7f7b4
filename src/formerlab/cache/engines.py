"""Simulate step-by-step eviction over whole sequences with the fastest suitable engine: Triton, numba or torch."""

import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType

import torch

from formerlab import kernels
from formerlab.cache.eviction import Engine, Eviction, EvictionResult, decides_by_score, visible_mask
from formerlab.cache.policies.policy import Prompt, by_group, masked_softmax

log = logging.getLogger(__name__)

NUMBA_THRESHOLD = 2**17
"""Number of pairs of query and retained key, over batch and heads, from which the numba engine is faster, including its
loading time."""
MAX_LOGITS = 2**26
"""Largest number of logits of a chunk in the torch engine on a CPU, unless a single sequence has more. Every thread
computes one chunk at a time."""
MAX_LOGITS_ON_GPU = 2**30
"""Largest number of logits of a chunk on a GPU with enough free memory."""
BYTES_PER_LOGIT = 32
"""Bytes of free memory per logit: the logit, its probability, masks and copies."""


def simulate_eviction(policy: Eviction, prompt: Prompt, engine: Engine | None = None) -> EvictionResult:
    """Simulate eviction with an engine (default: the fastest). On a CPU, half precision is computed in float32."""
    dtype = prompt.q.dtype
    if prompt.q.device.type == "cpu" and dtype.itemsize == 2:  # numba has no half precision
        prompt = replace(prompt, q=prompt.q.float(), k=prompt.k.float(), v=prompt.v.float())
    result = (engine or choose_engine(policy, prompt))(policy, prompt)
    return result._replace(out=result.out.to(dtype))


def choose_engine(policy: Eviction, prompt: Prompt) -> Engine:
    """Return Triton (GPU) or numba (large prompts on a CPU) if it supports the policy and tensors, otherwise torch."""
    engine, heads = None, prompt.q.shape[1]
    if prompt.q.is_cuda:
        engine = load_triton()
    elif prompt.q.device.type == "cpu":
        counts = zip(prompt.budgets, prompt.lengths, strict=True)
        pairs = heads * sum(length * min(policy.capacity(budget), length) for budget, length in counts)
        engine = load_numba() if pairs >= NUMBA_THRESHOLD else None
    same_widths = prompt.v.shape == prompt.k.shape  # compiled engines need d_key == d_value, unlike DeepSeek
    if engine is None or not same_widths or prompt.k.dtype not in engine.DTYPES or not decides_by_score(policy):
        return run_in_torch
    chosen: Engine = engine.run
    return chosen


@functools.cache
def load_numba() -> ModuleType | None:
    """Return the numba engine, or None if numba is not installed; log the engine once."""
    try:
        from formerlab.cache import numba_engine
    except ImportError as error:
        log.info("pruned attention runs in torch: %s", error)
        return None
    log.info("pruned attention on the CPU uses the numba engine, with %d threads", torch.get_num_threads())
    return numba_engine


def load_triton() -> ModuleType | None:
    """Return the Triton engine, or None if Triton cannot run."""
    if not kernels.triton_usable("pruned attention"):
        return None
    from formerlab.cache import triton_engine

    return triton_engine


def run_in_torch(policy: Eviction, prompt: Prompt) -> EvictionResult:
    """Simulate eviction over a whole prompt in torch, in chunks of the batch; on a CPU, threads process the chunks."""
    batch, heads, time, _ = prompt.q.shape
    threads = torch.get_num_threads() if prompt.q.device.type == "cpu" else 1
    rows = max(1, min(-(-batch // threads), chunk_size(prompt.q.device) // (heads * time * time)))
    chunks = [prompt.select(slice(first, first + rows)) for first in range(0, batch, rows)]
    with ThreadPoolExecutor(threads) as pool:
        results = list((pool.map if threads > 1 else map)(functools.partial(_run_chunk, policy), chunks))
    return EvictionResult(*(torch.cat(tensors) for tensors in zip(*results, strict=True)))


def chunk_size(device: torch.device) -> int:
    """Return the largest number of logits of a chunk in the torch engine."""
    if device.type != "cuda":
        return MAX_LOGITS
    return max(MAX_LOGITS, min(MAX_LOGITS_ON_GPU, torch.cuda.mem_get_info(device)[0] // BYTES_PER_LOGIT))


def _run_chunk(policy: Eviction, prompt: Prompt) -> EvictionResult:
    q, k, v = prompt.q, prompt.k, prompt.v
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        logits = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]) @ k.unsqueeze(2).transpose(-1, -2)
        last_query, scores = policy.trace(logits, prompt.budgets, k, prompt.layer)
        attention = masked_softmax(logits, visible_mask(last_query).unsqueeze(2)).to(v.dtype)
        return EvictionResult((attention @ v.unsqueeze(2)).flatten(1, 2), last_query, scores)
