"""The most memory that a piece of work holds, counted by the allocator."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

ALLOCATION = "[memory]"
"""What the profiler calls an allocation or its release."""


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Return the largest number of bytes that tensors held at one time during `work`, beyond those held before it.

    On a GPU the caching allocator keeps the count. A CPU's does not, so there the profiler writes every allocation and
    release down, which slows the work: never time what is counted.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    assert results is not None
    events = [event for event in results.events() if event.name() == ALLOCATION]
    held, peak = 0, 0
    for _, size in sorted(((event.start_ns(), event.nbytes()) for event in events), key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak
