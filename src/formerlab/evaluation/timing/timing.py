"""What stages share that time something alone on the machine: turns, seconds, and what has to be known beside them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field

from formerlab.spec import Count, Spec
from formerlab.training import provenance
from formerlab.training.run import Run

Item = TypeVar("Item")


class Timing(Spec):
    """What is measured of which runs of a study."""

    runs: tuple[str, ...] = ()
    """Patterns of run names; what they learned does not matter. Empty: nothing is measured."""
    repetitions: Annotated[Count, Field(ge=5)] = 7
    """Times that everything is measured."""

    def memory_bytes(self, runs: Sequence[Run]) -> int:
        """Return about how many bytes the models take, and all else that the stage holds at one time."""
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


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return how long some work takes, until the device is done with it."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def precision(run: Run, device: torch.device) -> torch.autocast:
    """Return the context in which matrix products have the precision of the run."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=run.precision == "bfloat16")


def circumstances(device: torch.device) -> dict[str, Any]:
    """Return on what, and beside how much else, was measured."""
    return {
        "device": provenance.device_name(device),
        "host": provenance.host(),
        "load": os.getloadavg()[0],
        "git": provenance.git_state(),
        "versions": provenance.versions(),
        "finished": provenance.now(),
    }
