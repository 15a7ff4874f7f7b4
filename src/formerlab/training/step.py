"""The optimizer's steps: batches, losses, gradients, and updates while every number is finite."""

import math
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint

from formerlab.errors import StoppedEarly
from formerlab.seeding import mixed_seed
from formerlab.tasks.task import DataPosition, Shard
from formerlab.training import processes
from formerlab.training.any_run import AnyRun
from formerlab.training.run import Run
from formerlab.training.state import State

AHEAD = 2
"""Steps whose batches are made before they are asked for."""
Batch = tuple[int, list[tuple[int, Any]]]
"""The number of parts of a step, and this process's parts, each with its number; from the first on they repeat others,
and do not count."""


def batches(run: Run, data: Any, start: DataPosition, first: int, device: torch.device) -> Generator[Batch]:
    """Yield the batches of steps `first`, first + 1, ..., each pure in its step.

    Where the model computes on another device than the CPU, a thread makes them ahead of time, and for CUDA in memory
    that the GPU copies from by itself. On a CPU nothing would be gained: they are made when they are asked for.
    """

    def make(step: int) -> Batch:
        key, shard = (data, run.seed, step, start), Shard(processes.rank(), processes.count())
        count, parts = run.task.micro_batch_count(*key), run.task.step_batches(*key, shard)
        if device.type == "cuda":
            parts = [part.pin_memory() for part in parts]
        return count, list(zip(shard.micro_batches(count), parts, strict=True))

    thread = None if device.type == "cpu" else ThreadPoolExecutor(1, "batches")
    made = deque[Future[Batch]]()
    try:
        for step in range(first, run.steps):
            if thread is None:
                yield make(step)
                continue
            for later in range(step + len(made), min(step + AHEAD + 1, run.steps)):
                made.append(thread.submit(make, later))
            yield made.popleft().result()
    finally:
        if thread is not None:
            thread.shutdown(cancel_futures=True)


class Outcome(NamedTuple):
    """What is known of the steps until now."""

    loss: float
    """Mean loss of the last one, nats."""
    norm: float
    """Norm of its gradient before clipping."""
    missed: int
    """Steps that were not taken: the first whose loss or gradient was not finite, and all after it."""
    beside: tuple[float, ...] = ()
    """What the task logs beside the loss."""


class Steps:
    """Takes the steps of a run, which begins at `start`; a step depends on the steps before it by the weights alone.

    Only the device knows whether loss and gradient are finite. A CPU reads that at once. Reading it from a GPU would
    wait for all work in its queue, so there the optimizer decides on the device: from the first bad step on it changes
    no weight, and `progress` reads what it decided when it is asked for.
    """

    def __init__(self, run: Run, state: State, data: Any, start: DataPosition) -> None:
        self.run, self.state, self.start, self.device = run, state, start, state.device
        self.batches = batches(run, data, start, state.step, self.device)
        self._batch: Batch | None = None
        self.began = 0.0
        """When the current step began to wait for its batch."""
        self.waits = waiting_is_free(self.device)
        self._outcome = torch.zeros(3, device=self.device)
        if run.checkpoint_activations:
            recompute_blocks(state.model)
        self._summing = processes.summing_gradients(state.model, some_rest=run.optimizer.mixing_start_step > 0)
        self.model = self._summing
        """What is called in the model's place."""
        dynamic = run.task.dynamic_shapes
        if run.compile and processes.sharded():
            # FSDP's hooks around blocks and norms would break a graph, and depth mixers need one for every length.
            model: Any = state.model
            for block in model.blocks:
                block.attention.compile(dynamic=dynamic)
                block.feedforward.compile(dynamic=dynamic)
        elif run.compile:
            self.model = torch.compile(self._summing, dynamic=dynamic)  # type: ignore[assignment]

    def fetch(self) -> str | None:
        """Get the batch of the next step, or return the reason to stop if it does not come."""
        self.began = time.perf_counter()
        try:
            self._batch = next(self.batches)
        except StoppedEarly as error:
            if processes.count() > 1:  # the others wait for this process in the middle of their step
                raise
            return str(error)
        return None

    def take(self) -> None:
        """Take the step of the batch fetched, unless loss or gradient are not finite; then it changes no weight."""
        run, state, device = self.run, self.state, self.device
        drawn = self.start.chain_steps + state.step
        # The generator of a GPU alone: batches are drawn at the same time, by those of the CPU.
        seed = (torch.default_generator if device.type == "cpu" else torch.get_device_module(device)).manual_seed
        seed(mixed_seed(run.seed, drawn))  # dropout, pure in the step
        run.optimizer.prepare(state.model, state.optimizer, state.step, run.schedule.factor(state.step, run.steps))
        assert self._batch is not None
        parts, mine = self._batch
        total = torch.zeros(1 + len(run.task.train_columns), device=device)
        for index, part in mine:
            if index > 0:
                seed(mixed_seed(run.seed, drawn, index))  # the same in whichever process
            with processes.of_part(self._summing, last=index == mine[-1][0]):
                with precision(run, device):
                    ready = part.to(device, non_blocking=True)
                    losses = [loss / parts for loss in run.task.losses(self.model, ready)]
                if index >= parts:
                    losses = [0.0 * loss for loss in losses]
                losses[0].backward()  # type: ignore[no-untyped-call]
            total += torch.stack(losses).detach()
        if processes.count() > 1:
            distributed.all_reduce(total)
        self._update(total)

    def _update(self, losses: Tensor) -> None:
        """Change the weights by their clipped gradients, whose mean loss is the first of `losses`, and drop those."""
        loss, optimizer, clip = losses[0], self.state.optimizer, self.run.optimizer.clip
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        moving = [weight for weight in weights if weight.grad is not None]
        norm = nn.utils.get_total_norm([weight.grad for weight in moving])
        own, missed = processes.whole(norm).to(loss), self._outcome[2]
        takes = clips = True
        if self.waits:
            numbers = torch.stack((loss, own)).tolist()
            takes = all(map(math.isfinite, numbers))
            clips = takes and numbers[1] > clip
            missed = missed + (not takes)
        else:
            bad = ~(loss.isfinite() & own.isfinite()) | (missed > 0)
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # where it is 1 nothing changes
            missed = missed + bad
        if clip and clips:
            nn.utils.clip_grads_with_norm_(moving, clip, norm)
        if takes:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._outcome = torch.cat((torch.stack((loss, own, missed)), losses[1:]))

    def read(self) -> Outcome:
        """Wait until the device has done every step, and return how they went."""
        loss, norm, missed, *beside = self._outcome.tolist()
        return Outcome(loss, norm, int(missed), tuple(beside))


def waiting_is_free(device: torch.device) -> bool:
    """Say whether a number of a tensor can be read without waiting for a device."""
    return device.type == "cpu"


def recompute_blocks(model: nn.Module) -> None:
    """Let blocks keep their inputs alone for the backward pass, which computes them again (arXiv:1604.06174)."""
    for stack in model.children():
        for block in stack if isinstance(stack, nn.ModuleList) else ():
            if "forward" not in vars(block):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def precision(run: AnyRun, device: torch.device) -> torch.autocast:
    """Return the context in which matrix products have the run's precision; released weights have their own."""
    lowered = isinstance(run, Run) and run.precision == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=lowered)
