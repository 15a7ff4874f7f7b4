"""The interface of all tasks, as the training stage uses it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import NonNegativeInt
from torch import Tensor, nn

from formerlab.results.write import Cell
from formerlab.spec import Count, Spec

Row = Sequence[Cell]
Measures = tuple[int | float | Tensor, ...]


class DataPosition(Spec):
    """Position in the training data at the start of a run, after the data of its ancestors."""

    chain_steps: NonNegativeInt = 0
    """Number of steps of all ancestors on any data, which seeds dropout."""
    steps: NonNegativeInt = 0
    """Number of steps of the ancestors on this data set, which seeds samples of the data (windows, crops, mixes)."""
    position: NonNegativeInt = 0
    """Training data read so far: images (classification), batches (translation) or steps (language modelling)."""
    step_tokens: NonNegativeInt = 0
    """Number of tokens per step of the parent. A translation run divides the data into the parent's batches with this
    number to find its position."""


START = DataPosition()


@dataclass(frozen=True)
class Shard:
    """The micro-batches of a step that a process computes."""

    rank: int = 0
    """Index of the process."""
    processes: int = 1

    def micro_batches(self, count: int) -> list[int]:
        """Return the numbers of this process's micro-batches in a step with `count` micro-batches.

        All processes compute equal numbers of micro-batches, because every reduction needs all processes. If `count` is
        not a multiple of `processes`, some micro-batches are repeated. Repeated micro-batches have numbers >= `count`
        and do not contribute to the gradient.
        """
        rounds = -(-count // self.processes)
        return list(range(self.rank, rounds * self.processes, self.processes))

    def indices(self, count: int) -> list[int]:
        """Return the indices (below `count`) of this process's micro-batches."""
        return [number % count for number in self.micro_batches(count)]


SINGLE_PROCESS = Shard()
"""The shard of a single process: all micro-batches."""
TRAINING_PASSES = 3
"""Training FLOPs per forward FLOP: the backward pass has two matrix products (inputs, weights) per forward product."""


class TaskSpec(Spec, ABC):
    """Batches, loss, evaluation and test rows for one kind of data and model.

    Batches depend only on (data, seed, start, step), and rows only on (model, data). `data` is the result of `load`. A
    batch has `pin_memory()` and `to(device, non_blocking=...)`. `start` is the position after the data of the run's
    ancestors.
    """

    reads: ClassVar[str]
    """Kind of data set."""
    trains: ClassVar[str]
    """Kind of model."""
    eval_columns: ClassVar[tuple[str, ...]] = ("tokens", "loss_nats")
    """Columns of eval.csv that `measure` fills; the first two are the same for all tasks."""
    train_columns: ClassVar[tuple[str, ...]] = ()
    """Additional columns of train.csv, for the values that `losses` returns after the loss."""
    test_columns: ClassVar[tuple[str, ...]] = ("window", "tokens", "loss_nats")
    """Columns of test.csv; the first three are the same for all tasks."""
    dynamic_shapes: ClassVar[bool | None] = False
    """The argument `dynamic` of torch.compile. False compiles one static graph per shape; None makes the graph symbolic
    at the second shape."""

    accumulate: Count = 1
    """Number of micro-batches per step, processed in sequence; it must divide `batch` if the task has this field."""

    def check(self, model: Any) -> None:
        """Raise ValueError if the task does not support the model or if micro-batches differ in size."""
        if model.kind != self.trains:
            kind = self.model_dump()["kind"]
            raise ValueError(f"task.kind={kind} trains model.kind={self.trains}, not {model.kind}; change one of them")
        if (batch := getattr(self, "batch", self.accumulate)) % self.accumulate:
            raise ValueError(f"task.accumulate={self.accumulate} does not divide task.batch={batch}")

    @abstractmethod
    def load(self, folder: Path, split: str) -> Any:
        """Return a split (train, valid, test) of the data prepared in `folder`. Raises UserError for damaged files."""

    def micro_batch_count(self, data: Any, seed: int, step: int, start: DataPosition = START) -> int:
        """Return the number of micro-batches of optimizer step `step` (0-based), by default `accumulate`."""
        return self.accumulate

    @abstractmethod
    def step_batches(
        self, data: Any, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> Sequence[Any]:
        """Return the micro-batches of `shard` in optimizer step `step` (0-based), in the order of `shard.indices`.

        Only these micro-batches are built. The content of a micro-batch does not depend on the shard.
        """

    @abstractmethod
    def valid_batches(self, data: Any) -> Sequence[Any]:
        """Return the fixed validation batches."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return the training loss of a micro-batch, followed by the values of `train_columns` without gradient.

        The loss of a step is the mean over its micro-batches.
        """

    @abstractmethod
    def measure(self, model: nn.Module, batch: Any) -> Measures:
        """Return the values of `eval_columns`: predicted tokens, their mean negative log-likelihood in nats, ...

        The values stay on the device, so that the caller can transfer many batches together.
        """

    def held_out(self, folder: Path) -> Any:
        """Return the test split of the data prepared in `folder` for the next three methods."""
        return self.load(folder, "test")

    @abstractmethod
    def test_groups(self, data: Any) -> Sequence[Any]:
        """Return the held-out examples in groups; the examples of a group are evaluated together."""

    @abstractmethod
    def test_rows(self, model: Any, data: Any, group: Any) -> list[Row]:
        """Return a row of `test_columns` per example of a group: index, predicted tokens, mean loss in nats, ..."""

    @abstractmethod
    def guessed_rows(self, model: Any, data: Any) -> list[Row]:
        """Return the test rows of a diverged run: a uniform guess over the outputs of the model spec."""

    @property
    @abstractmethod
    def step_tokens(self) -> int:
        """Tokens that a step predicts, estimated without data."""

    @abstractmethod
    def step_flops(self, model: Any) -> int:
        """Return the forward FLOPs of a step, estimated without data."""

    @property
    @abstractmethod
    def micro_batch_tokens(self) -> int:
        """Number of positions per micro-batch, which determines the memory of activations."""

    @abstractmethod
    def epoch_tokens(self, data: Any) -> int:
        """Return the number of predicted tokens in the training split."""

    def position_after(self, data: Any, start: DataPosition, step: int) -> DataPosition:
        """Return the position of a run after `step` steps from `start`, where a child run starts."""
        position, steps = self._position(data, start, step), start.steps + step
        return DataPosition(
            chain_steps=start.chain_steps + step, steps=steps, position=position, step_tokens=self.step_tokens
        )

    def _position(self, data: Any, start: DataPosition, step: int) -> int:
        return start.steps + step

    def step_counts(self, model: Any, data: Any, seed: int, step: int, start: DataPosition = START) -> tuple[int, int]:
        """Return the tokens that step `step` (0-based) predicts, and its training FLOPs."""
        return self.step_tokens, TRAINING_PASSES * self.step_flops(model)

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Update the averages of weights after step `step` (1-based) of `steps`; checkpoints store `averaging`."""

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        """Load averaged weights into the model, if the task averages weights."""
