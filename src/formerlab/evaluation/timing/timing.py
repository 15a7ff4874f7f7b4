"""Shared by stages that measure times: turns, seconds, memory."""

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
    """Settings of a stage that times runs of a study beside each other; their weights do not matter."""

    decides: ClassVar[tuple[str, ...]] = ("model",)
    """The parts of a run's spec that decide its times."""
    repetitions: Annotated[Count, Field(ge=5)] = 7
    """Number of repetitions."""

    def memory_bytes(self, runs: Sequence[AnyRun]) -> int:
        """Return about how many bytes the stage holds at one time, models included."""
        return sum(4 * run.model.params() for run in runs)


def turns(items: Sequence[Item], repetitions: int) -> Iterator[tuple[int, int, Item]]:
    """Yield repetition, place in it (from 1) and item: every repetition takes all items, another one first.

    What slows the machine for a while so slows all of them. Repetition 0, before the others, warms up: it compiles,
    chooses kernels and gets memory, and is not to be counted.
    """
    for repetition in range(repetitions + 1):
        shift = repetition % len(items)
        for place, item in enumerate([*items[shift:], *items[:shift]], start=1):
            yield repetition, place, item


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return how long some work takes, until the device is done with it."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


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
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    assert results is not None
    events = [event for event in results.events() if event.name() == "[memory]"]  # allocations and releases
    held, peak = 0, 0
    for _, size in sorted(((event.start_ns(), event.nbytes()) for event in events), key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak


def random_tokens(model: DecoderModel, sequences: int, length: int, seed: int) -> Int[Tensor, "sequences length"]:
    """Return tokens of the model's vocabulary, on its device: speed does not depend on what they are."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.spec.vocabulary, (sequences, length), generator=generator)
    return tokens.to(model.embedding.device)


def take_in(model: DecoderModel, cache: Attend, tokens: Int[Tensor, "sequences time"], start: int = 0) -> None:
    """Give a model the tokens from position `start` on, one by one; the cache holds those in front of them."""
    for now in range(start, tokens.shape[1]):
        model(tokens[:, now : now + 1], attend=cache, start=now)
