"""Optimizer steps: batches, losses, gradients, and updates if loss and gradient are finite."""

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
"""Number of steps whose batches are prepared in advance."""
Batch = tuple[int, list[tuple[int, Any]]]
"""The number n of micro-batches of a step, and the (index, micro-batch) pairs of this process. A micro-batch with index
>= n is a copy of another micro-batch, and its loss is multiplied by zero."""


def batches(run: Run, data: Any, start: DataPosition, first: int, device: torch.device) -> Generator[Batch]:
    """Yield the batches of steps `first`, first + 1, ...; for a GPU, a thread prepares them in advance."""

    def make(step: int) -> Batch:
        key, shard = (data, run.seed, step, start), Shard(processes.rank(), processes.group_size())
        count, micro_batches = run.task.micro_batch_count(*key), run.task.step_batches(*key, shard)
        if device.type == "cuda":
            micro_batches = [micro_batch.pin_memory() for micro_batch in micro_batches]
        return count, list(zip(shard.micro_batches(count), micro_batches, strict=True))

    thread = None if device.type == "cpu" else ThreadPoolExecutor(1, "batches")
    queued = deque[Future[Batch]]()
    try:
        for step in range(first, run.steps):
            if thread is None:
                yield make(step)
                continue
            for next_step in range(step + len(queued), min(step + AHEAD + 1, run.steps)):
                queued.append(thread.submit(make, next_step))
            yield queued.popleft().result()
    finally:
        if thread is not None:
            thread.shutdown(cancel_futures=True)


class Outcome(NamedTuple):
    """The metrics of a step."""

    loss: float
    """Mean loss in nats."""
    norm: float
    """Gradient norm before clipping."""
    skipped: int
    """Number of steps so far without update: the first step with a non-finite loss or gradient, and all later steps."""
    task_metrics: tuple[float, ...] = ()
    """Metrics of the task."""


class Steps:
    """The optimizer steps of a run that starts at the data position `start`.

    On a CPU, each step checks whether loss and gradient are finite. On a GPU, the result of the check stays on the
    device to avoid a synchronisation: from the first non-finite step on, the optimizer skips its updates, and `read`
    returns the number of skipped steps.
    """

    def __init__(self, run: Run, state: State, data: Any, start: DataPosition) -> None:
        self.run, self.state, self.start, self.device = run, state, start, state.device
        self.batches = batches(run, data, start, state.step, self.device)
        self._batch: Batch | None = None
        self.began = 0.0
        """Time in seconds (`time.perf_counter`) at which the current step started to wait for its batch."""
        self.checks_every_step = reads_without_sync(self.device)
        self._outcome = torch.zeros(3, device=self.device)
        if run.checkpoint_activations:
            recompute_blocks(state.model)
        self._ddp_model = processes.wrap_in_ddp(state.model, unused_parameters=run.optimizer.mixing_start_step > 0)
        self.model = self._ddp_model
        """The wrapped model (compiled or distributed) that the loop calls."""
        dynamic = run.task.dynamic_shapes
        if run.compile and processes.sharded():
            # Compile the sub-layers, because FSDP's hooks around blocks and norms would break a larger graph.
            model: Any = state.model
            for block in model.blocks:
                block.attention.compile(dynamic=dynamic)
                block.feedforward.compile(dynamic=dynamic)
        elif run.compile:
            self.model = torch.compile(self._ddp_model, dynamic=dynamic)  # type: ignore[assignment]

    def fetch(self) -> str | None:
        """Fetch the batch of the next step; return the reason to stop if no batch arrives, otherwise None."""
        self.began = time.perf_counter()
        try:
            self._batch = next(self.batches)
        except StoppedEarly as error:
            if processes.group_size() > 1:  # the other processes wait for this process
                raise
            return str(error)
        return None

    def take(self) -> None:
        """Take a step with the fetched batch; weights do not change if loss or gradient is not finite."""
        run, state, device = self.run, self.state, self.device
        dropout_step = self.start.chain_steps + state.step
        # Seed only the device's generator, because a thread may sample batches with the CPU's generator.
        seed = (torch.default_generator if device.type == "cpu" else torch.get_device_module(device)).manual_seed
        seed(mixed_seed(run.seed, dropout_step))  # dropout depends only on the step
        run.optimizer.prepare(state.model, state.optimizer, state.step, run.schedule.factor(state.step, run.steps))
        assert self._batch is not None
        micro_batch_count, local_batches = self._batch
        total = torch.zeros(1 + len(run.task.train_columns), device=device)
        for index, micro_batch in local_batches:
            if index > 0:
                seed(mixed_seed(run.seed, dropout_step, index))  # equal for any number of processes
            with processes.micro_batch_context(self._ddp_model, last=index == local_batches[-1][0]):
                with precision(run, device):
                    inputs = micro_batch.to(device, non_blocking=True)
                    losses = [loss / micro_batch_count for loss in run.task.losses(self.model, inputs)]
                if index >= micro_batch_count:
                    losses = [0.0 * loss for loss in losses]
                losses[0].backward()  # type: ignore[no-untyped-call]
            total += torch.stack(losses).detach()
        if processes.group_size() > 1:
            distributed.all_reduce(total)
        self._update(total)

    def _update(self, losses: Tensor) -> None:
        """Clip the gradients, update the weights and clear the gradients; `losses` begins with the mean loss."""
        loss, optimizer, clip = losses[0], self.state.optimizer, self.run.optimizer.clip
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        trained = [weight for weight in weights if weight.grad is not None]
        norm = nn.utils.get_total_norm([weight.grad for weight in trained])
        full_norm, skipped = processes.full_tensor(norm).to(loss), self._outcome[2]
        updates = clips = True
        if self.checks_every_step:
            numbers = torch.stack((loss, full_norm)).tolist()
            updates = all(map(math.isfinite, numbers))
            clips = updates and numbers[1] > clip
            skipped = skipped + (not updates)
        else:
            bad = ~(loss.isfinite() & full_norm.isfinite()) | (skipped > 0)
            optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # 1 makes the fused step skip its update
            skipped = skipped + bad
        if clip and clips:
            nn.utils.clip_grads_with_norm_(trained, clip, norm)
        if updates:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._outcome = torch.cat((torch.stack((loss, full_norm, skipped)), losses[1:]))

    def read(self) -> Outcome:
        """Wait for the device and return the outcome of the last step."""
        loss, norm, skipped, *task_metrics = self._outcome.tolist()
        return Outcome(loss, norm, int(skipped), tuple(task_metrics))


def reads_without_sync(device: torch.device) -> bool:
    """Return whether a number can be read from a tensor without synchronisation."""
    return device.type == "cpu"


def recompute_blocks(model: nn.Module) -> None:
    """Save only block inputs and recompute blocks in the backward pass (arXiv:1604.06174)."""
    for stack in model.children():
        for block in stack if isinstance(stack, nn.ModuleList) else ():
            if "forward" not in vars(block):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def precision(run: AnyRun, device: torch.device) -> torch.autocast:
    """Return the autocast context of a run; released models compute in the dtype of their weights."""
    enabled = isinstance(run, Run) and run.precision == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)
