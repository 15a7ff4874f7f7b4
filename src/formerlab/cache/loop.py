"""The engine that runs everywhere: a loop over queries, vectorised over sequences and heads, on compact slots."""

import torch
from torch.nn import functional as F

from formerlab.cache.engine import Prompt, Pruned
from formerlab.cache.eviction import BLOCK, Eviction, Rows
from formerlab.cache.policy import by_group

QUERIES = 4 * BLOCK  # whose logits against all keys are held at a time


@torch.no_grad()
def run(policy: Eviction, prompt: Prompt) -> Pruned:
    """Simulate eviction over whole sequences."""
    groups, time = prompt.q.shape[1] // prompt.k.shape[1], prompt.q.shape[2]
    q, v = by_group(prompt.q * prompt.q.shape[-1] ** -0.5, groups), prompt.v.unsqueeze(2)
    keys = F.pad(prompt.k, (0, 0, 1, 0)).unsqueeze(2).transpose(-1, -2)  # in front, what stands for no key
    precise = torch.promote_types(q.dtype, torch.float32)
    capacity = min(max(policy.limit(budget) for budget in prompt.entries), time) + BLOCK
    slots = policy.slots(prompt.entries, prompt.k.shape[1], capacity, q.new_empty(0, dtype=precise))
    batch, sets, _ = slots.positions.shape
    last = torch.full((batch, sets, time + 1), time, dtype=torch.int32, device=q.device)
    entry = policy.entry(torch.arange(time, device=q.device), sets, prompt.k, prompt.layer)
    entry = None if entry is None else entry.to(precise)
    looked_at = prompt.k if "keys" in policy.needs else None
    out = torch.empty_like(q)
    for first in range(0, time, QUERIES):
        end = min(first + QUERIES, time)
        logits = (q[:, :, :, first:end] @ keys[..., : end + 1]).to(precise)
        logits[..., 0] = -torch.inf
        later = torch.ones(end - first, end - first, dtype=torch.bool, device=q.device).triu(1)
        logits[..., first + 1 :].masked_fill_(later, -torch.inf)
        rows = Rows(first, logits, entry, looked_at)
        for start in range(first, end, BLOCK):
            for _ in policy.over(rows, slots, start, min(BLOCK, end - start), last):
                pass
        out[:, :, :, first:end] = logits[..., 1:].to(v.dtype) @ v[..., :end, :]
    scores = slots.scores.new_zeros(batch, sets, time + 1)
    scores.scatter_(-1, slots.positions.clamp(max=time).long(), slots.scores)
    return Pruned(out.flatten(1, 2), last[..., :time], scores[..., :time])
