"""Helpers shared by the stages that measure speed and memory."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar, TypeVar

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from formerlab.layers.attention import Attend
from formerlab.models.decoder import DecoderModel
from formerlab.spec import Count, Spec
from formerlab.training.any_run import AnyRun

Item = TypeVar("Item")


class Timing(Spec):
    """Settings of a stage that times several runs of a study in turn."""

    depends_on: ClassVar[tuple[str, ...]] = ("model",)
    """Fields of a run's spec that affect its times."""
    repetitions: Annotated[Count, Field(ge=5)] = 7
    """Number of timed repetitions."""

    def memory_bytes(self, runs: Sequence[AnyRun]) -> int:
        """Estimate the peak bytes of the stage; by default the bytes of all models' weights in float32."""
        return sum(4 * run.model.params() for run in runs)


def interleaved(items: Sequence[Item], repetitions: int) -> Iterator[tuple[int, int, Item]]:
    """Yield repetition, position in the repetition (from 1) and item; each repetition starts with another item.

    A temporary slowdown of the machine therefore affects all items. Repetition 0 is a warm-up, which compiles, chooses
    kernels and allocates memory; do not report it.
    """
    for repetition in range(repetitions + 1):
        shift = repetition % len(items)
        for position, item in enumerate([*items[shift:], *items[:shift]], start=1):
            yield repetition, position, item


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `work()`, including its kernels on the device."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Return the peak bytes of tensors during `work()`, minus the bytes that were allocated before it.

    On a GPU the caching allocator counts the bytes. On a CPU the profiler records every allocation and release, which
    slows the work, so time it separately.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - allocated
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]  # allocations and releases
    allocated, peak = 0, 0
    for _, size in sorted(((event.start_ns(), event.nbytes()) for event in events), key=lambda event: event[0]):
        allocated += size
        peak = max(peak, allocated)
    return peak


def random_tokens(model: DecoderModel, sequences: int, length: int, seed: int) -> Int[Tensor, "sequences length"]:
    """Return random token ids below the model's vocabulary size, on the model's device."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.spec.vocabulary, (sequences, length), generator=generator)
    return tokens.to(model.embedding.device)


def feed_tokens(model: DecoderModel, cache: Attend, tokens: Int[Tensor, "sequences time"], start: int = 0) -> None:
    """Feed a model the tokens at positions start, start + 1, ... one by one; the cache has the earlier tokens."""
    for position in range(start, tokens.shape[1]):
        model(tokens[:, position : position + 1], attend=cache, start=position)
