"""The Triton engine: call the GPU kernels of pruned attention with torch tensors. This module imports Triton."""

import torch

from formerlab.cache.eviction import Eviction, EvictionResult, coefficients
from formerlab.cache.policies.policy import Prompt
from formerlab.kernels import pruned_attention

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def run(policy: Eviction, prompt: Prompt) -> EvictionResult:
    """Simulate eviction over a whole prompt."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (prompt.q, prompt.k, prompt.v))
    batch, heads, time, d_head = q.shape
    head_groups = 1 if policy.scope == "layer" else k.shape[1]
    out = torch.empty_like(q)
    last_query = torch.full((batch, head_groups, time), time, dtype=torch.int32, device=q.device)
    scores = q.new_zeros(batch, head_groups, time, dtype=torch.float32)
    initial = policy.cast_initial_scores(prompt.k, head_groups, prompt.layer, scores)
    initial = None if initial is None else initial.expand(batch, head_groups, time).contiguous()
    limits = [(length, *bound) for length, bound in zip(prompt.lengths, policy.bounds(prompt.budgets), strict=True)]
    slots = pruned_attention.slot_count(min(max(capacity for _, capacity, *_ in limits), time))
    heads_per_kv_head, heads_per_group = heads // k.shape[1], heads // head_groups
    logit_lines = batch * head_groups, heads_per_group * pruned_attention.BLOCK + 1
    logits = q.new_empty(*logit_lines, slots, dtype=torch.float32)
    # Two allocations, so that both start at an aligned address.
    line_maxima, line_sums = logits.new_empty(logit_lines), logits.new_empty(logit_lines)
    slot_log = q.new_empty(batch * head_groups, 2, slots, dtype=torch.int32)
    decay, gain = coefficients(policy) or (0.0, 0.0)
    tensors = [item for x in (q, k, v, out) for item in (x, *x.stride()[:3])]
    numbers = decay, gain, d_head**-0.5, head_groups, heads_per_group, heads_per_kv_head, time, d_head
    limit_table = torch.tensor(limits, dtype=torch.int32).to(q.device, non_blocking=True)
    buffers = initial, last_query, scores, logits, line_maxima, line_sums, slot_log, limit_table
    sizes = pruned_attention.launch_options(slots, d_head)
    with torch.cuda.device(q.device if q.is_cuda else -1):  # Triton launches on the current GPU
        pruned_attention.evict[(batch * head_groups,)](*tensors, *buffers, *numbers, initial is not None, **sizes)
    return EvictionResult(out, last_query, scores)
