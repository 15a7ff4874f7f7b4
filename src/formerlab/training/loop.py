"""The training loop of every study."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from formerlab.errors import StoppedEarly
from formerlab.progress import Progress
from formerlab.seeding import mixed_seed
from formerlab.tasks.task import BEGINNING, Measures, Place
from formerlab.training import processes
from formerlab.training.batches import Batches
from formerlab.training.cost import peak_memory_bytes
from formerlab.training.run import Run
from formerlab.training.state import Outcome, State, Updates


@dataclass(frozen=True)
class Hooks:
    """What the loop asks of its surroundings."""

    save: Callable[[State], None]
    """Write a checkpoint."""
    stop: Callable[[], str | None]
    """Return the reason to stop now, if there is one."""
    checkpoint_seconds: float = 60.0
    """Least time between two checkpoints; 0 saves after every step."""
    between_saves: float = 30.0
    """Time between two checkpoints over what the last one took: saving stops training, for 3 % of the time at most."""


def train(
    run: Run, state: State, train_data: Any, valid_data: Any, hooks: Hooks, start: Place = BEGINNING
) -> int | None:
    """Train to the last step and return nothing, or the step at which the run diverged.

    It has diverged when loss or gradient are not finite, or what a step leaves: weights and validation loss where a
    row is due. That step leaves no row, and weights that are not finite are never saved.
    Every step is pure in (run, start, step): its batch, learning rate and dropout depend on nothing else, so a run that
    was interrupted and goes on from a checkpoint ends with the same bits. `start` is where its ancestors ended.

    Raises
    ------
    UserError
        Where the parts of a step cannot be shared out to the processes.
    StoppedEarly
        When `hooks.stop` gave a reason; the state is saved.
    """
    processes.check_parts(getattr(run.task, "accumulate", processes.count()))
    model, summing = _compiled_and_summing(run, state.model)
    valid = run.task.valid_batches(valid_data)
    if not state.rows["eval"] and not _validate(run, model, state, valid):
        return state.step
    updates = Updates(state.optimizer, run.optimizer.clip, _device(state))
    next_save = time.monotonic() + hooks.checkpoint_seconds
    batches = Batches(run, train_data, start, state.step, _device(state))
    with batches, Progress(run.steps, f"train {run.id}", start=state.step) as progress:
        while state.step < run.steps:
            reason, saves = _stops_or_saves(hooks, next_save)
            if reason is not None:
                return _stop(run, state, hooks, updates, reason)
            last = state.step + 1 == run.steps
            logged = last or state.step == 0 or (state.step + 1) % run.log_every == 0
            evaluated = last or (state.step + 1) % run.evaluate_every == 0
            started = time.perf_counter()
            _optimizer_step(run, model, state, summing, batches, updates)
            state.step += 1
            outcome = updates.read() if updates.waits or logged or evaluated or saves else None
            spent = time.perf_counter() - started
            if outcome and (outcome.missed or ((logged or evaluated) and not _finite_weights(state.model))):
                return _back_to_good(state, max(outcome.missed, 1))
            state.training_time_s += spent
            run.task.after_step(state.model, state.step, run.steps, state.kept)
            if outcome and logged:
                _log(run, state, train_data, start, outcome, progress)
            if evaluated and not _validate(run, model, state, valid):
                return state.step
            if saves:
                next_save = _save(state, hooks)
    run.task.finish(state.model, state.kept)
    return None


def _stops_or_saves(hooks: Hooks, next_save: float) -> tuple[str | None, bool]:
    """Return why to stop now, if there is a reason, and whether the next step is to be saved; all processes agree."""
    reason = hooks.stop()
    stops, saves = processes.any_wants(reason is not None, time.monotonic() >= next_save)
    return reason or ("another process was asked to" if stops else None), saves


def _stop(run: Run, state: State, hooks: Hooks, updates: Updates, reason: str) -> int:
    """Save and raise StoppedEarly, or return the step at which the run diverged before anybody looked."""
    if missed := updates.read().missed:
        return _back_to_good(state, missed)
    _save(state, hooks)
    processes.wait_for_all()
    done = f"stopped after step {state.step} of {run.steps}"
    raise StoppedEarly(f"{run.id}: {done} ({reason}); run again to continue")


def _back_to_good(state: State, steps: int) -> int:
    """Take back steps that were not taken; return the first of them."""
    state.step -= steps
    return state.step + 1


def _compiled_and_summing(run: Run, model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return what is called in the model's place, and what in it sums gradients over the processes."""
    if run.checkpoint_activations:
        recompute_blocks(model)
    summing = processes.summing_gradients(model, some_rest=run.optimizer.mixing_start_step > 0)
    if not run.compile:
        return summing, summing
    if processes.sharded():
        processes.compile_parts(model)
        return model, model
    return torch.compile(summing), summing  # type: ignore[return-value]


def recompute_blocks(model: nn.Module) -> None:
    """Let blocks keep their inputs alone for the backward pass, which computes them again (arXiv:1604.06174)."""
    for stack in model.children():
        for block in stack if isinstance(stack, nn.ModuleList) else ():
            if "forward" not in vars(block):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _optimizer_step(
    run: Run, model: nn.Module, state: State, summing: nn.Module, batches: Batches, updates: Updates
) -> None:
    """Take the next step, unless loss or gradient are not finite; then it changes no weight."""
    device = _device(state)
    drawn = batches.start.chain_steps + state.step
    # The generator of a GPU alone: batches are drawn at the same time, by those of the CPU.
    seed = (torch.default_generator if device.type == "cpu" else torch.get_device_module(device)).manual_seed
    seed(mixed_seed(run.seed, drawn))  # dropout, pure in the step
    factor = run.schedule.factor(state.step, run.steps)
    run.optimizer.prepare(state.model, state.optimizer, state.step, factor)
    parts, mine = batches.take()
    total = torch.zeros(1 + len(run.task.train_columns), device=device)
    for index, part in mine:
        if index > 0:
            seed(mixed_seed(run.seed, drawn, index))  # whichever process has the part
        with processes.of_part(summing, last=index == mine[-1][0]):
            with _precision(run, device):
                losses = [loss / parts for loss in run.task.losses(model, part.to(device, non_blocking=True))]
            if index >= parts:
                losses = [0.0 * loss for loss in losses]
            losses[0].backward()  # type: ignore[no-untyped-call]
        total += torch.stack(losses).detach()
    processes.sum_over_all(total)
    updates.take(total)


def _finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


def _finite_weights(model: nn.Module) -> bool:
    return _finite(processes.whole(nn.utils.get_total_norm(model.parameters())).item())


def _save(state: State, hooks: Hooks) -> float:
    """Write a checkpoint, unless the run is about to diverge: then the last good one is worth more.

    Return when the next one is due, on the monotonic clock.
    """
    began = time.monotonic()
    if _finite_weights(state.model):
        hooks.save(state)
    now = time.monotonic()
    least = hooks.checkpoint_seconds
    return now + (max(least, hooks.between_saves * (now - began)) if least else 0.0)


def _log(run: Run, state: State, data: Any, start: Place, outcome: Outcome, progress: Progress) -> None:
    """Add the rows of a logged step."""
    tokens = run.task.tokens_until(data, run.seed, state.step, start)
    lr = state.optimizer.param_groups[0]["lr"]
    speed = tokens / state.training_time_s
    state.rows["train"].append([state.step, tokens, outcome.loss, lr, outcome.norm, *outcome.beside])
    memory = peak_memory_bytes(_device(state))
    state.rows["timing"].append([state.step, state.training_time_s, speed, memory])
    progress.update(state.step, tokens_per_s=speed, loss=outcome.loss)


def _validate(run: Run, model: nn.Module, state: State, batches: Sequence[Any]) -> bool:
    """Add one row per batch of the fixed validation stream and per mixing weight, or say that a loss is not finite."""
    device = _device(state)
    measures: list[Measures] = []
    with _evaluating(state.model), _precision(run, device):
        for batch in batches:
            measures.append(run.task.measure(model, batch.to(device, non_blocking=True)))
    rows = _read(measures)
    if not _finite(*(value for row in rows for value in row)):
        return False
    state.rows["eval"] += [[state.step, "valid", index, *row] for index, row in enumerate(rows)]
    mixer = getattr(state.model, "mixer", None)
    state.rows["depth"] += [] if mixer is None else [[state.step, *weight] for weight in mixer.weights()]
    return True


def _read(rows: Sequence[Measures]) -> list[list[int | float]]:
    """Return rows with the numbers of their tensors, which are read from the device at once."""
    tensors = [cell.double() for row in rows for cell in row if isinstance(cell, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())
    return [[next(numbers) if isinstance(cell, Tensor) else cell for cell in row] for row in rows]


def _device(state: State) -> torch.device:
    return processes.device_of(state.model)


def _precision(run: Run, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=run.precision == "bfloat16")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
