"""The stage `speed`: measure the speed of training, forward passes and decoding of several runs in one process.

Each repetition measures all runs in turn. Models have initial weights, because trained weights do not change the speed.
"""

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from formerlab.cache import KVCache
from formerlab.errors import UserError
from formerlab.evaluation.measurement import Rows
from formerlab.evaluation.timing.timing import Timing, feed_tokens, interleaved, peak_bytes, random_tokens, seconds
from formerlab.kernels import weighted_sum
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.schema import DECODE, FORWARD, TRAINING
from formerlab.spec import Count, Spec
from formerlab.tasks.language import LanguageModeling
from formerlab.tasks.scoring import evaluating
from formerlab.training.loop import Hooks, train
from formerlab.training.run import Run
from formerlab.training.state import State
from formerlab.training.step import precision


class Speed(Timing):
    """Settings of `speed`."""

    depends_on: ClassVar[tuple[str, ...]] = ("model", "task", "optimizer", "precision", "compile")
    training_steps: Count = 5
    """Timed optimizer steps per repetition."""
    forward_sequences: Count = 64
    """Number of sequences per forward pass without gradients (64 in arXiv:2402.02622, section 4)."""
    decoded_tokens: Count = 64
    """Number of tokens that are decoded one by one with a KV cache, for one sequence; at most the context."""


class EqualTime(Spec):
    """Train this run as long as the run `arm` (arXiv:2402.02622, Table 3): its steps are the steps of `arm` times
    `ratio`.
    """

    arm: str
    """Run of the same study with the training time to match."""
    reference: str
    """Run of the same study with this run's model, task, optimizer, precision and compile; `speed` must time `arm` and
    `reference`."""

    def ratio(self, path: Path) -> float:
        """Return the step time of `arm` divided by the step time of `reference`, median over repetitions in speed.csv.

        Raises UserError if the step times of a run are missing.
        """
        import pandas as pd

        try:
            rows = pd.read_csv(path).query("measure == @TRAINING")
            times = rows.pivot(index="repetition", columns="run", values="time_s")
            return float((times[self.arm] / times[self.reference]).median())
        except (OSError, KeyError, ValueError) as error:
            names = f"{self.arm} and {self.reference}"
            raise UserError(f"{path}: no step times of {names} ({error}); run the stage speed first") from None


def measure(runs: list[Run], speed: Speed, device: torch.device) -> tuple[Rows, dict[str, str]]:
    """Return one row per repetition, run and measure, with the seconds of one step, pass or token, and the peak bytes.

    `memory_bytes` is the peak size of all tensors, including weights and, in training, gradients and AdamW's moments.
    It is measured in repetition 0, in separate passes that are not timed. Also returns an entry of the record: the
    implementation of depth-weighted averages in training and forward passes.
    """
    if any(run.compile for run in runs):  # above these limits, torch runs further models uncompiled without a message
        import torch._dynamo.config as dynamo

        dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 10_000
    models: dict[str, Any] = {run.name: run.model.build(run.seed) for run in runs}
    peaks: dict[str, dict[str, int]] = {}
    rows = Rows()
    with Progress(len(runs) * (1 + speed.repetitions), f"speed {runs[0].study}", unit="turn") as progress:
        for repetition, position, run in interleaved(runs, speed.repetitions):
            turn = Turn(run, models[run.name].to(device), speed, device)
            times = turn.seconds()
            if repetition == 0:
                peaks[run.name] = turn.bytes()
            else:
                for name, size in turn.sizes.items():
                    rows.append([run.name, name, repetition, position, *size, times[name], peaks[run.name][name]])
            models[run.name].to("cpu")
            progress.advance()
    eager = weighted_sum.sums_implementation() if device.type == "cpu" else "eager"
    return rows, {"mixing": " and ".join(sorted({"compiled" if run.compile else eager for run in runs}))}


class Turn:
    """The measurement of one run in one repetition."""

    def __init__(self, run: Run, model: DecoderModel, speed: Speed, device: torch.device) -> None:
        assert isinstance(run.task, LanguageModeling)  # the plan admits only decoders
        self.run, self.task, self.model, self.speed, self.device = run, run.task, model, speed, device
        self.compiled: Any = torch.compile(model, dynamic=False) if run.compile else model
        self.decoded = min(speed.decoded_tokens, self.task.context)
        batch, sequences, context = self.task.batch, speed.forward_sequences, self.task.context
        self.sizes = {TRAINING: (batch, batch * context), FORWARD: (sequences, sequences * context), DECODE: (1, 1)}
        """Sequences and tokens of one step, pass or token, by measure."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of one step, pass or token, by measure; steps use the training loop's clock.

        An untimed step or pass precedes each measurement (compilation, kernel choice, memory allocation).
        """
        cumulative_s, times = self._train(1 + self.speed.training_steps), {}
        times[TRAINING] = (cumulative_s[-1] - cumulative_s[1]) / self.speed.training_steps
        for name, work, count in ((FORWARD, self._forward, 1), (DECODE, self._decode, self.decoded)):
            work()
            times[name] = seconds(work, self.device) / count
        return times

    def bytes(self) -> dict[str, int]:
        """Return the peak bytes of all tensors, by measure."""
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        works = {TRAINING: lambda: self._train(2), FORWARD: self._forward, DECODE: self._decode}
        return {name: weights + peak_bytes(work, self.device) for name, work in works.items()}

    def _train(self, steps: int) -> list[float]:
        """Train the model for `steps` steps; return the cumulative training seconds before each step and at the end."""
        self.model.train()
        # validation uses the same micro-batch size, so only one shape is compiled
        micro_batch = self.task.batch // self.task.accumulate
        task = self.task.model_copy(update={"valid_windows": micro_batch})
        changes = {"task": task, "steps": steps, "evaluate_every": steps, "log_every": steps}
        state = State(self.model, self.run.optimizer.build(self.model))
        cumulative_s: list[float] = []
        hooks = Hooks(lambda state: None, lambda: cumulative_s.append(state.training_time_s), float("inf"))
        tokens = random_tokens(self.model, 1, 64 * task.context, self.run.seed)
        stream = tokens.flatten().cpu().numpy().astype(np.uint32)
        with redirect_stderr(io.StringIO()):  # hides the progress bar
            train(self.run.model_copy(update=changes), state, stream, stream, hooks)
        return [*cumulative_s, state.training_time_s]

    def _forward(self) -> None:
        tokens = random_tokens(self.model, self.speed.forward_sequences, self.task.context, self.run.seed)
        with evaluating(self.model, torch.no_grad), precision(self.run, self.device):
            self.compiled(tokens)

    def _decode(self) -> None:
        tokens = random_tokens(self.model, 1, self.decoded, self.run.seed)
        with evaluating(self.model, torch.no_grad), precision(self.run, self.device):
            feed_tokens(self.model, KVCache(), tokens)
