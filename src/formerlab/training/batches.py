"""The batches of a run's steps, made by a thread while the steps before them are computed."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple

import torch

from formerlab.tasks.task import Place
from formerlab.training import processes
from formerlab.training.run import Run

AHEAD = 2
"""Steps whose batches are made before they are asked for."""


class Batch(NamedTuple):
    """What this process has of a step."""

    parts: int
    """Parts of the whole step."""
    mine: list[tuple[int, Any]]
    """This process's parts, each with its number; numbers from `parts` on are repeated and do not count."""


class Batches:
    """Gives the batches of steps `first`, first + 1, ... in order, each pure in its step, to be used in a `with` block.

    Where the model computes on another device than the CPU, a thread makes them ahead of time, and for CUDA in memory
    that the GPU copies from by itself. On a CPU nothing would be gained: they are made when they are asked for.
    """

    def __init__(self, run: Run, data: Any, start: Place, first: int, device: torch.device) -> None:
        self.run, self.data, self.start, self.device = run, data, start, device
        self._next, self._made = first, deque[Future[Batch]]()
        self._thread = None if device.type == "cpu" else ThreadPoolExecutor(1, "batches")

    def __enter__(self) -> "Batches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def take(self) -> Batch:
        """Return the batch of the next step."""
        if self._thread is None:
            self._next += 1
            return self._make(self._next - 1)
        while len(self._made) <= AHEAD and self._next < self.run.steps:
            self._made.append(self._thread.submit(self._make, self._next))
            self._next += 1
        return self._made.popleft().result()

    def _make(self, step: int) -> Batch:
        key, share = (self.data, self.run.seed, step, self.start), processes.share()
        count, parts = self.run.task.part_count(*key), self.run.task.step_batches(*key, share)
        if self.device.type == "cuda":
            parts = [part.pin_memory() for part in parts]
        return Batch(count, list(zip(share.numbers(count), parts, strict=True)))
