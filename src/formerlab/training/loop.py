"""The training loop of every study."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from formerlab.data.text.streams import lender
from formerlab.errors import StoppedEarly
from formerlab.progress import Progress
from formerlab.seeding import mixed_seed
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.task import BEGINNING, Measures, Place
from formerlab.training import processes
from formerlab.training.batches import Batches
from formerlab.training.cost import peak_memory_bytes
from formerlab.training.run import Run
from formerlab.training.state import Outcome, Row, State, Updates


@dataclass
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

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.checkpoint_seconds
        self.due = False
        """Whether what is under way is to be saved when it is done."""

    def asked(self) -> str | None:
        """Return why to stop now, if there is a reason, and set `due`; all processes agree."""
        reason = self.stop()
        stops, self.due = processes.any_wants(reason is not None, time.monotonic() >= self._next)
        return reason or ("another process was asked to" if stops else None)

    def write_if_due(self, state: State) -> None:
        """Write a checkpoint if it was time for one when `asked` was called."""
        if self.due:
            self.write(state)

    def write(self, state: State) -> None:
        """Write a checkpoint, unless the run is about to diverge: then the last good one is worth more."""
        began = time.monotonic()
        if _finite_weights(state.model):
            self.save(state)
        now, least = time.monotonic(), self.checkpoint_seconds
        self._next = now + (max(least, self.between_saves * (now - began)) if least else 0.0)

    def leave(self, state: State, done: str, reason: str) -> NoReturn:
        """Save and raise StoppedEarly."""
        self.write(state)
        processes.wait_for_all()
        raise StoppedEarly(f"{done} ({reason}); run again to continue")


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
    StoppedEarly
        When `hooks.stop` gave a reason; the state is saved.
    """
    model, summing = _compiled_and_summing(run, state.model)
    valid = run.task.valid_batches(valid_data)
    if not state.rows["eval"] and not _validate(run, model, state, valid):
        return state.step
    updates = Updates(state.optimizer, run.optimizer.clip, _device(state))
    batches = Batches(run, train_data, start, state.step, _device(state))
    with batches, Progress(run.steps, f"train {run.id}", start=state.step) as progress:
        while state.step < run.steps:
            if (reason := hooks.asked()) is not None:
                if missed := updates.read().missed:  # before anybody looked
                    return state.count(run, train_data, start, -missed)
                hooks.leave(state, f"{run.id}: stopped after step {state.step} of {run.steps}", reason)
            logged, evaluated = _due(run, state.step)
            started = time.perf_counter()
            _optimizer_step(run, model, state, summing, batches, updates)
            outcome = updates.read() if updates.waits or logged or evaluated or hooks.due else None
            spent = time.perf_counter() - started
            state.count(run, train_data, start, 1)
            if missed := _missed(state, outcome, looks=logged or evaluated):
                return state.count(run, train_data, start, -missed)
            state.training_time_s += spent
            run.task.after_step(state.model, state.step, run.steps, state.kept)
            if outcome and logged:
                _log(state, outcome, progress)
            if evaluated and not _validate(run, model, state, valid):
                return state.step
            hooks.write_if_due(state)
    run.task.finish(state.model, state.kept)
    return None


def measure(run: Run, state: State, data: Path, hooks: Hooks, diverged: int | None) -> None:
    """Measure the test split of prepared data, and of those that lend them their tokenizer; guess for a diverged run.

    Raises
    ------
    StoppedEarly
        When `hooks.stop` gave a reason; the state is saved, and what is measured is not measured again.
    """
    other = lender(data) if run.task.reads == "text" else None
    for table, folder in {"test": data, "lender_test": other}.items():
        if folder is not None:
            held_out: Any = run.task.held_out(folder)
            done = state.tested.setdefault(table, [])
            if diverged is None:
                _test(run, state, held_out, done, hooks)
            else:
                done[:] = [[list(row) for row in run.task.guessed_rows(run.model, held_out)]]


def _test(run: Run, state: State, held_out: Any, done: list[list[Row]], hooks: Hooks) -> None:
    """Measure group after group of held-out examples; each process takes its own."""
    groups: Any = run.task.test_groups(held_out)
    narrow = _device(state).type != "cpu" or processes.sharded()  # a CPU gains nothing
    while len(done) < len(groups):
        if (reason := hooks.asked()) is not None:
            hooks.leave(state, f"{run.id}: stopped in the test, {len(done)} of {len(groups)} groups done", reason)
        mine = min(len(done) + processes.rank(), len(groups) - 1)  # who has none repeats the last, to meet in sums
        with _precision(run, _device(state)) if narrow else nullcontext():
            rows = run.task.test_rows(state.model, held_out, groups[mine])
        done += processes.gathered([list(row) for row in rows])[: len(groups) - len(done)]
        hooks.write_if_due(state)


def _due(run: Run, step: int) -> tuple[bool, bool]:
    """Say whether the step after `step` others leaves rows of training, and of an evaluation."""
    last = step + 1 == run.steps
    return last or step == 0 or (step + 1) % run.log_every == 0, last or (step + 1) % run.evaluate_every == 0


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


def _missed(state: State, outcome: Outcome | None, *, looks: bool) -> int:
    """Return how many steps are to be taken back: those that were not taken, or the one that spoilt the weights."""
    if outcome is None:
        return 0
    return outcome.missed or int(looks and not _finite_weights(state.model))


def _finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


def _finite_weights(model: nn.Module) -> bool:
    return _finite(processes.whole(nn.utils.get_total_norm(model.parameters())).item())


def _log(state: State, outcome: Outcome, progress: Progress) -> None:
    """Add the rows of a logged step."""
    lr = state.optimizer.param_groups[0]["lr"]
    speed = state.tokens / state.training_time_s
    state.rows["train"].append([state.step, state.tokens, outcome.loss, lr, outcome.norm, *outcome.beside])
    memory = peak_memory_bytes(_device(state))
    state.rows["timing"].append([state.step, state.training_time_s, speed, memory])
    progress.update(state.step, tokens_per_s=speed, loss=outcome.loss)


def _validate(run: Run, model: nn.Module, state: State, batches: Sequence[Any]) -> bool:
    """Add one row per batch of the fixed validation stream and per mixing weight, or say that a loss is not finite."""
    device = _device(state)
    measures: list[Measures] = []
    with evaluating(state.model, torch.no_grad), _precision(run, device):
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
