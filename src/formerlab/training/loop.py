"""The training loop of every study."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from formerlab.errors import StoppedEarly
from formerlab.evaluation.cost import peak_memory_bytes
from formerlab.progress import Progress
from formerlab.run import Run
from formerlab.seeding import mixed_seed
from formerlab.training import parallel
from formerlab.training.state import Row, State


@dataclass(frozen=True)
class Hooks:
    """What the loop asks of its surroundings."""

    save: Callable[[State], None]
    """Write a checkpoint."""
    stop: Callable[[], str | None]
    """Return the reason to stop now, if there is one."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints."""


def train(run: Run, state: State, train_data: Any, valid_data: Any, hooks: Hooks) -> int | None:
    """Train to the last step and return nothing, or the step at which the run diverged.

    It has diverged when loss, gradient or weights are not finite, or the validation loss; that step leaves no row.
    Every step is pure in (run, step): its batch, learning rate and dropout depend on nothing else, so a run that was
    interrupted and goes on from a checkpoint ends with the same bits.

    Raises
    ------
    StoppedEarly
        When `hooks.stop` gave a reason; the state is saved.
    """
    model: nn.Module = torch.compile(state.model) if run.compile else state.model  # type: ignore[assignment]
    valid = run.task.valid_batches(valid_data)
    if not state.rows["eval"] and not _validate(run, model, state, valid):
        return state.step
    saved = time.monotonic()
    with Progress(run.steps, f"train {run.id}", start=state.step) as progress:
        while state.step < run.steps:
            if (reason := parallel.any_says(hooks.stop(), _device(state))) is not None:
                hooks.save(state)
                parallel.wait_for_all()
                done = f"stopped after step {state.step} of {run.steps}"
                raise StoppedEarly(f"{run.id}: {done} ({reason}); run again to continue")
            started = time.perf_counter()
            loss, norm = _optimizer_step(run, model, state, train_data)
            weights = parallel.complete(nn.utils.get_total_norm(state.model.parameters())).item()
            if not all(map(math.isfinite, (loss, norm, weights))):
                return state.step + 1
            state.training_time_s += time.perf_counter() - started
            state.step += 1
            run.task.after_step(state.model, state.step, run.steps, state.kept)
            _log(run, state, train_data, loss, norm, progress)
            due = state.step % run.evaluate_every == 0 or state.step == run.steps
            if due and not _validate(run, model, state, valid):
                return state.step
            time_to_save = "it is time" if time.monotonic() - saved >= hooks.checkpoint_seconds else None
            if parallel.any_says(time_to_save, _device(state)) is not None:
                hooks.save(state)
                saved = time.monotonic()
    run.task.finish(state.model, state.kept)
    return None


def _optimizer_step(run: Run, model: nn.Module, state: State, data: Any) -> tuple[float, float]:
    """Take one step; return the mean loss (nats) and the gradient norm before clipping.

    A step whose loss or gradient is not finite changes no weight.
    """
    device = _device(state)
    torch.manual_seed(mixed_seed(run.seed, state.step))  # dropout, pure in the step
    factor = run.schedule.factor(state.step, run.steps)
    run.optimizer.prepare(state.model, state.optimizer, state.step, factor)
    parts: Sequence[Any] = run.task.step_batches(data, run.seed, state.step)
    total = torch.zeros((), device=device)
    for index, part in parallel.share(parts):
        if index > 0:
            torch.manual_seed(mixed_seed(run.seed, state.step, index))  # whichever process has the part
        with _precision(run, device):
            loss = run.task.loss(model, part.to(device)) / len(parts)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    parallel.add_gradients(state.model, total)
    limit = run.optimizer.clip or math.inf
    norm = parallel.complete(nn.utils.clip_grad_norm_(state.model.parameters(), limit))
    if torch.isfinite(total) and torch.isfinite(norm):
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return total.item(), norm.item()


def _log(run: Run, state: State, data: Any, loss: float, norm: float, progress: Progress) -> None:
    """Add the rows of a logged step."""
    if state.step % run.log_every and state.step not in (1, run.steps):
        return
    tokens = run.task.tokens_until(data, run.seed, state.step)
    lr = state.optimizer.param_groups[0]["lr"]
    speed = tokens / state.training_time_s
    state.rows["train"].append([state.step, tokens, loss, lr, norm])
    memory = peak_memory_bytes(_device(state))
    state.rows["timing"].append([state.step, state.training_time_s, speed, memory])
    progress.update(state.step, tokens_per_s=speed, loss=loss)


def _validate(run: Run, model: nn.Module, state: State, batches: Sequence[Any]) -> bool:
    """Add one row per batch of the fixed validation stream and per mixing weight, or say that a loss is not finite."""
    device = _device(state)
    rows: list[Row] = []
    with _evaluating(state.model), _precision(run, device):
        for index, batch in enumerate(batches):
            rows.append([state.step, "valid", index, *run.task.measure(model, batch.to(device))])
    if not all(math.isfinite(float(value)) for row in rows for value in row[3:]):
        return False
    state.rows["eval"] += rows
    mixer = getattr(state.model, "mixer", None)
    state.rows["depth"] += [] if mixer is None else [[state.step, *weight] for weight in mixer.weights()]
    return True


def _device(state: State) -> torch.device:
    return parallel.device_of(state.model)


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
