"""The engine that runs everywhere: a loop over queries, vectorised over sequences and heads, on compact slots."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from formerlab.cache.eviction import VECTOR, Eviction, Pruned, Rows
from formerlab.cache.policies.policy import Prompt, by_group

QUERIES = 64  # whose logits against all keys are held at a time


def run(policy: Eviction, prompt: Prompt) -> Pruned:
    """Simulate eviction over whole sequences; on the CPU each thread takes some of them."""
    batch = len(prompt.lengths)
    threads = min(torch.get_num_threads(), batch) if prompt.q.device.type == "cpu" else 1
    if threads == 1:
        return _run(policy, prompt)
    rows = [slice(batch * part // threads, batch * (part + 1) // threads) for part in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda some: _run(policy, prompt.of(some)), rows))
    return Pruned(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _run(policy: Eviction, prompt: Prompt) -> Pruned:
    with torch.no_grad(), torch.autocast(prompt.q.device.type, enabled=False):  # alike in all threads
        return _simulate(policy, prompt)


def _simulate(policy: Eviction, prompt: Prompt) -> Pruned:
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
        for _ in policy.over(rows, state, last):
            pass
        assert rows.probabilities is not None
        out.append(rows.probabilities[..., :-1].to(v.dtype) @ v[..., :end, :])
    scores = state.scores.new_zeros(batch, head_groups, time + 1)
    scores.scatter_(-1, state.positions.clamp(max=time).long(), state.scores)
    return Pruned((out[0] if len(out) == 1 else torch.cat(out, 3)).flatten(1, 2), last[..., :time], scores[..., :time])
