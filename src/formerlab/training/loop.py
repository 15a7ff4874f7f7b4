"""The training loop."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from formerlab.data.manifest import tokenizer_owner
from formerlab.errors import StoppedEarly
from formerlab.progress import Progress
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.task import START, DataPosition
from formerlab.training import processes
from formerlab.training.provenance import peak_memory_bytes
from formerlab.training.run import Run
from formerlab.training.state import State
from formerlab.training.step import Steps, precision

MIN_INTERVAL_IN_SAVES = 30.0
"""Minimum time between checkpoints, in multiples of the time to save a checkpoint."""


@dataclass
class Hooks:
    """Callbacks of the training loop."""

    save: Callable[[State], None]
    """Write a checkpoint."""
    stop: Callable[[], str | None]
    """Return the reason to stop now, or None."""
    checkpoint_seconds: float = 60.0
    """Minimum time between two checkpoints; 0 saves after every step."""

    def __post_init__(self) -> None:
        self._next, self.due = time.monotonic() + self.checkpoint_seconds, False
        self._last_call, self._calls, self.longest_step_s = 0.0, 0, 0.0

    def reason_to_stop(self) -> str | None:
        """Return the reason to stop now, or None, and set `due`: whether to write a checkpoint.

        All processes stop, and write checkpoints, after the same step. The call also updates `longest_step_s`,
        the longest time between two calls, without the first step, which includes compilation.
        """
        called, self._calls = time.monotonic(), self._calls + 1
        if self._calls > 2:
            self.longest_step_s = max(self.longest_step_s, called - self._last_call)
        self._last_call = called
        reason = self.stop()
        stops, self.due = processes.any_process(reason is not None, time.monotonic() >= self._next)
        return reason or ("another process was asked to stop" if stops else None)

    def write(self, state: State) -> None:
        """Write a checkpoint if one is due and all weights are finite."""
        if not self.due:
            return
        began = time.monotonic()
        if _finite_weights(state.model):
            self.save(state)
        ended, min_interval = time.monotonic(), self.checkpoint_seconds
        self._next = ended + (max(min_interval, MIN_INTERVAL_IN_SAVES * (ended - began)) if min_interval else 0.0)

    def save_and_stop(self, state: State, message: str, reason: str) -> NoReturn:
        """Write a checkpoint and raise StoppedEarly with the text "`message` (`reason`); run again to continue"."""
        self.due = True
        self.write(state)
        processes.wait_for_all()
        progress = [state.step, *map(len, state.tested.values())]
        raise StoppedEarly(f"{message} ({reason}); run again to continue", progress)


def train(
    run: Run, state: State, train_data: Any, valid_data: Any, hooks: Hooks, start: DataPosition = START
) -> int | None:
    """Train to the last step; return None, or the step at which the run diverged.

    A run diverges if the loss or gradient of a step is not finite, or if the weights or the validation loss are not
    finite at a step that writes metrics. If loss, gradient or weights are not finite, no metrics of the step are
    written. A checkpoint never contains weights that are not finite.

    `start` is the position in the data at which the run's ancestors ended. The batch, learning rate and dropout of a
    step depend only on (run, start, step), so resuming is bit-identical on a CPU, and on a GPU with `deterministic`.

    Raises StoppedEarly after saving the state if `hooks.stop` returns a reason.
    """
    steps, valid = Steps(run, state, train_data, start), run.task.valid_batches(valid_data)
    if not state.rows["eval"] and not _validate(run, steps.model, state, valid):
        return state.step
    with closing(steps.batches), Progress(run.steps, f"train {run.id}", start=state.step) as progress:
        while state.step < run.steps:
            if (reason := hooks.reason_to_stop() or steps.fetch()) is not None:
                if skipped := steps.read().skipped:
                    return state.advance(run, train_data, start, -skipped)
                hooks.save_and_stop(state, f"{run.id}: stopped after step {state.step} of {run.steps}", reason)
            step, last = state.step + 1, state.step + 1 == run.steps
            logged = last or step == 1 or step % run.log_every == 0
            evaluated = last or step % run.evaluate_every == 0
            steps.take()
            outcome = steps.read() if steps.checks_every_step or logged or evaluated or hooks.due else None
            spent = time.perf_counter() - steps.began
            state.advance(run, train_data, start, 1)
            bad_weights = (logged or evaluated) and not _finite_weights(state.model)
            if outcome and (outcome.skipped or bad_weights):
                return state.advance(run, train_data, start, -(outcome.skipped or 1))
            state.training_time_s += spent
            run.task.after_step(state.model, state.step, run.steps, state.kept)
            if outcome and logged:
                rate = run.optimizer.lr * run.schedule.factor(step - 1, run.steps)
                speed = state.tokens / state.training_time_s
                metrics = [step, state.tokens, outcome.loss, rate, outcome.norm, *outcome.task_metrics]
                state.rows["train"].append(metrics)
                state.rows["timing"].append([step, state.training_time_s, speed, peak_memory_bytes(state.device)])
                progress.update(step, tokens_per_s=speed, loss=outcome.loss)
            if evaluated and not _validate(run, steps.model, state, valid):
                return state.step
            hooks.write(state)
    run.task.finish(state.model, state.kept)
    return None


def evaluate_on_test(run: Run, state: State, data: Path, hooks: Hooks, diverged: int | None) -> None:
    """Evaluate on the test split and, if another data set owns the tokenizer, on the test split of that data set.

    Appends the rows to `state.tested`. A diverged run (`diverged` is a step) gets the loss of a uniform guess. Raises
    StoppedEarly after saving the state if `hooks.stop` returns a reason.
    """
    owner_folder = tokenizer_owner(data) if run.task.reads == "text" else None
    autocasts = state.device.type != "cpu" or processes.sharded()  # autocast does not speed up one CPU process
    for table, folder in {"test": data, "lender_test": owner_folder}.items():
        if folder is None:
            continue
        held_out: Any = run.task.held_out(folder)
        tested_groups = state.tested.setdefault(table, [])
        if diverged is not None:
            tested_groups[:] = [[list(row) for row in run.task.guessed_rows(run.model, held_out)]]
            continue
        examples: Any = run.task.test_groups(held_out)  # divided among the processes
        with evaluating(state.model, nullcontext):
            while len(tested_groups) < len(examples):
                if (reason := hooks.reason_to_stop()) is not None:
                    progress = f"{len(tested_groups)} of {len(examples)} groups of examples done"
                    hooks.save_and_stop(state, f"{run.id}: stopped during the test, {progress}", reason)
                # The last group may be repeated, because all processes must call the same collective operations.
                local_group = min(len(tested_groups) + processes.rank(), len(examples) - 1)
                with precision(run, state.device) if autocasts else nullcontext():
                    rows = [list(row) for row in run.task.test_rows(state.model, held_out, examples[local_group])]
                tested_groups += processes.gather_objects(rows)[: len(examples) - len(tested_groups)]
                hooks.write(state)


def _finite_weights(model: nn.Module) -> bool:
    return math.isfinite(processes.full_tensor(nn.utils.get_total_norm(model.parameters())).item())


def _validate(run: Run, model: nn.Module, state: State, batches: Sequence[Any]) -> bool:
    """Add a row per validation batch and per mixing weight and return True; return False if a value is not finite."""
    with evaluating(state.model, torch.no_grad), precision(run, state.device):
        # Copy the values, because a CUDA graph overwrites the loss of the previous batch.
        measured = (run.task.measure(model, batch.to(state.device, non_blocking=True)) for batch in batches)
        measures = [[x.double() if isinstance(x, Tensor) else x for x in row] for row in measured]
    tensors = [cell for row in measures for cell in row if isinstance(cell, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else ())  # a single transfer from the device
    rows = [[next(numbers) if isinstance(cell, Tensor) else cell for cell in row] for row in measures]
    if not all(math.isfinite(value) for row in rows for value in row):
        return False
    state.rows["eval"] += [[state.step, "valid", index, *row] for index, row in enumerate(rows)]
    mixer = getattr(state.model, "mixer", None)
    state.rows["depth"] += [] if mixer is None else [[state.step, *weight] for weight in mixer.weights()]
    return True
