"""The stage `speed`: how fast runs train, score and decode, beside each other in one process.

Every repetition takes all runs in turn. Speed does not depend on what a model has learned, so nothing needs to be
trained before; text is drawn at random.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from formerlab.cache import KVCache
from formerlab.errors import UserError
from formerlab.evaluation.timing.timing import Timing, peak_bytes, precision, random_tokens, seconds, take_in, turns
from formerlab.kernels import weighted_sum
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.schema import DECODE, FORWARD, TRAINING
from formerlab.results.stages import TABLES
from formerlab.results.write import Cell, write_rows
from formerlab.spec import Count
from formerlab.tasks.language import LanguageModeling
from formerlab.training.loop import Hooks, train
from formerlab.training.run import Run
from formerlab.training.state import State

WARM_UP = 1
"""Training steps before those that are timed: they compile, choose kernels, get memory."""


class Speed(Timing):
    """What is timed of which runs of a study; each should be another model."""

    decides: ClassVar[tuple[str, ...]] = ("model", "task", "optimizer", "precision", "compile")
    training_steps: Count = 5
    """Optimizer steps that are timed in a repetition."""
    forward_sequences: Count = 64
    """Sequences of a full forward pass, without gradients (64 in arXiv:2402.02622, section 4)."""
    decoded_tokens: Count = 64
    """Tokens that one sequence is decoded by, one at a time with cached keys and values; at most the context."""


def measure(runs: list[Run], speed: Speed, device: torch.device, path: Path) -> dict[str, str]:
    """Write a row per repetition, run and measure, seconds and bytes being those of one step, pass or token.

    `memory_bytes` is the most that tensors hold at one time, weights and (in training) gradients and AdamW's moments
    included. It is counted, not sampled: the same in every repetition, so it is taken once, in the warm-up, and never
    in a pass that is timed. Returns how averages over depth were computed, for the record.
    """
    if any(run.compile for run in runs):
        _let_all_compile()
    models = {run.name: run.model.build(run.seed) for run in runs}
    held: dict[str, dict[str, int]] = {}
    rows: list[list[Cell]] = []
    with Progress(len(runs) * (1 + speed.repetitions), f"speed {runs[0].study}", unit="turn") as progress:
        for repetition, place, run in turns(runs, speed.repetitions):
            turn = Turn(run, models[run.name].to(device), speed, device)
            taken = turn.seconds()
            if repetition == 0:
                held[run.name] = turn.bytes()
            else:
                rows += [
                    [run.name, unit, repetition, place, *size, taken[unit], held[run.name][unit]]
                    for unit, size in turn.sizes().items()
                ]
            models[run.name].to("cpu")
            progress.advance()
    write_rows(path, TABLES["speed.csv"].names, rows)
    return {"mixing": " and ".join(sorted({mixing(device, compiled=run.compile) for run in runs}))}


def _let_all_compile() -> None:
    """Lift the limit beyond which further models silently run uncompiled."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 10_000


def mixing(device: torch.device, *, compiled: bool = False) -> str:
    """Return how averages over depth were computed: compiled, native or eager."""
    if compiled:
        return "compiled"
    return weighted_sum.path() if device.type == "cpu" else "eager"


class Turn:
    """One run while it is measured: its model is the only one on the device."""

    def __init__(self, run: Run, model: nn.Module, speed: Speed, device: torch.device) -> None:
        if not isinstance(model, DecoderModel) or not isinstance(run.task, LanguageModeling):
            raise UserError(f"speed.runs: run {run.name!r} is no language model; name runs of a decoder")
        self.run, self.task, self.model, self.speed, self.device = run, run.task, model, speed, device
        self.compiled: nn.Module = torch.compile(model) if run.compile else model  # type: ignore[assignment]
        self.weights = sum(parameter.nbytes for parameter in model.parameters())
        self.decoded = min(speed.decoded_tokens, self.task.context)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return, by measure, the sequences and tokens of its unit."""
        task, sequences = self.task, self.speed.forward_sequences
        return {
            TRAINING: (task.batch, task.batch * task.context),
            FORWARD: (sequences, sequences * task.context),
            DECODE: (1, 1),
        }

    def seconds(self) -> dict[str, float]:
        """Return, by measure, the seconds of its unit."""
        training = self._training_seconds()
        with self._inference():
            return {
                TRAINING: training,
                FORWARD: self._seconds(self._forward),
                DECODE: self._seconds(self._decode) / self.decoded,
            }

    def bytes(self) -> dict[str, int]:
        """Return, by measure, the most bytes held at one time."""
        training = self._bytes(lambda: self._train(2))
        with self._inference():
            return {TRAINING: training, FORWARD: self._bytes(self._forward), DECODE: self._bytes(self._decode)}

    def _training_seconds(self) -> float:
        """Return the seconds of one optimizer step, as training itself counts them."""
        spent = self._train(WARM_UP + self.speed.training_steps)
        return (spent[-1] - spent[WARM_UP]) / self.speed.training_steps

    def _train(self, steps: int) -> list[float]:
        """Train the model for some steps; return the seconds spent before each step, and at the end."""
        self.model.train()
        task = self.task.model_copy(update={"valid_windows": 1})
        changes = {"task": task, "steps": steps, "evaluate_every": steps, "log_every": steps}
        state = State(self.model, self.run.optimizer.build(self.model))
        spent: list[float] = []

        def before_a_step() -> None:
            spent.append(state.training_time_s)

        hooks = Hooks(lambda state: None, before_a_step, float("inf"))
        stream = self._tokens(1, 64 * task.context).flatten().cpu().numpy().astype(np.uint32)
        with redirect_stderr(io.StringIO()):  # its progress
            train(self.run.model_copy(update=changes), state, stream, stream, hooks)
        return [*spent, state.training_time_s]

    def _forward(self) -> None:
        self.compiled(self._tokens(self.speed.forward_sequences, self.task.context))

    def _decode(self) -> None:
        take_in(self.model, KVCache(), self._tokens(1, self.decoded))

    def _seconds(self, work: Callable[[], None]) -> float:
        work()  # warms up
        return seconds(work, self.device)

    def _bytes(self, work: Callable[[], object]) -> int:
        return self.weights + peak_bytes(work, self.device)

    def _tokens(self, sequences: int, length: int) -> Int[Tensor, "sequences length"]:
        return random_tokens(self.model, sequences, length, self.run.seed)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        self.model.eval()
        with torch.no_grad(), precision(self.run, self.device):
            yield
