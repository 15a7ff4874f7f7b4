"""The interface of all tasks; the training stage uses nothing else of them."""

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
    """Where a run of a chain begins in its training data, behind all that its ancestors read."""

    chain_steps: NonNegativeInt = 0
    """Steps of the chain so far, on whatever data; they number what is drawn beside the data (dropout)."""
    steps: NonNegativeInt = 0
    """Those on these data; they number what is drawn from the data (windows, crops, blends)."""
    position: NonNegativeInt = 0
    """Position in the endless row of epochs, in images or batches of sentences; without epochs, the steps."""
    step_tokens: NonNegativeInt = 0
    """Tokens of a step of the parent; batches of sentences change with them."""


START = DataPosition()


@dataclass(frozen=True)
class Shard:
    """Which parts of a step one of several processes has."""

    rank: int = 0
    """Number of the process."""
    processes: int = 1

    def micro_batches(self, count: int) -> list[int]:
        """Return the numbers of its parts among the `parts` of a step.

        A step may have fewer parts than others (of few sentences, say). All processes work on equally many, since all
        take part in every sum: one with too few repeats parts of others, numbered from `parts` on, which do not count.
        """
        rounds = -(-count // self.processes)
        return list(range(self.rank, rounds * self.processes, self.processes))

    def indices(self, parts: int) -> list[int]:
        """Return the same with each repetition under the number of the part that it repeats."""
        return [number % parts for number in self.micro_batches(parts)]


SINGLE_PROCESS = Shard()
"""All parts."""
TRAINING_PASSES = 3
"""One forward, and a backward of twice its products: gradients by inputs and by weights."""


class TaskSpec(Spec, ABC):
    """Batches, loss, evaluation and test rows of one kind of data and model.

    Everything is pure: a batch in (data, seed, start, step), a row in (model, data). `data` is whatever `load` returns,
    a batch anything with `pin_memory()` and `to(device, non_blocking=...)`, and `start` where the ancestors of the run
    ended, if it has any. A run goes on from there with new draws; what is drawn with replacement, as windows of text
    are, may come again.
    """

    reads: ClassVar[str]
    """Kind of data set."""
    trains: ClassVar[str]
    """Kind of model."""
    eval_columns: ClassVar[tuple[str, ...]] = ("tokens", "loss_nats")
    """Columns of eval.csv that `measure` fills; all start with these two."""
    train_columns: ClassVar[tuple[str, ...]] = ()
    """Columns of train.csv behind those of all tasks: what `losses` returns beside what is minimised."""
    test_columns: ClassVar[tuple[str, ...]] = ("window", "tokens", "loss_nats")
    """Columns of test.csv; all start with these three."""
    dynamic_shapes: ClassVar[bool | None] = False
    """The `dynamic` of torch.compile. False: every shape has a static graph of its own, also where validation, which
    comes first, has other batch sizes than training. None: a second shape makes the graph symbolic."""

    accumulate: Count = 1
    """Parts in which a step is processed, one after another; they divide `batch`, where a task has one."""

    def check(self, model: Any) -> None:
        """Raise ValueError, naming both keys, where the model cannot do this task or parts would differ in size."""
        if model.kind != self.trains:
            own = self.model_dump()["kind"]
            raise ValueError(f"task.kind={own} trains model.kind={self.trains}, not {model.kind}; name another")
        if (batch := getattr(self, "batch", self.accumulate)) % self.accumulate:
            raise ValueError(f"task.accumulate={self.accumulate} does not divide task.batch={batch}")

    @abstractmethod
    def load(self, folder: Path, split: str) -> Any:
        """Return a split (train, valid, test) of the data prepared in `folder`. Raises UserError for damaged files."""

    def micro_batch_count(self, data: Any, seed: int, step: int, start: DataPosition = START) -> int:
        """Return the number of parts of optimizer step `step` (0-based), by default that of all steps."""
        return self.accumulate

    @abstractmethod
    def step_batches(
        self, data: Any, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> Sequence[Any]:
        """Return the batch of optimizer step `step` (0-based) in the parts that are processed one after another.

        Of those, only the ones of `share` are made, in the order of its numbers; they are what they are among all.
        """

    @abstractmethod
    def valid_batches(self, data: Any) -> Sequence[Any]:
        """Return the fixed validation batches."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return what training minimises on one part, and behind it the values of `train_columns`, without a gradient.

        The step takes the mean over its parts.
        """

    @abstractmethod
    def measure(self, model: nn.Module, batch: Any) -> Measures:
        """Return the values of `eval_columns`: predicted tokens, their mean negative log-likelihood in nats, ...

        Values stay on the device, so that those of many batches are read at once.
        """

    def held_out(self, folder: Path) -> Any:
        """Return the test split of the data prepared in `folder`, for the next three."""
        return self.load(folder, "test")

    @abstractmethod
    def test_groups(self, data: Any) -> Sequence[Any]:
        """Return the held-out examples in groups that are measured together, one after another."""

    @abstractmethod
    def test_rows(self, model: Any, data: Any, group: Any) -> list[Row]:
        """Return a row of `test_columns` per example of a group: number, predicted tokens, mean loss in nats, ..."""

    @abstractmethod
    def guessed_rows(self, model: Any, data: Any) -> list[Row]:
        """Return the test rows of a uniform guess with the output of the spec `model`, for a diverged run."""

    @property
    @abstractmethod
    def step_tokens(self) -> int:
        """Tokens that a step predicts, as far as that is known without data."""

    @abstractmethod
    def step_flops(self, model: Any) -> int:
        """Forward FLOPs of a step, as far as they are known without data."""

    @property
    @abstractmethod
    def micro_batch_tokens(self) -> int:
        """Positions whose activations are in memory at once."""

    @abstractmethod
    def epoch_tokens(self, data: Any) -> int:
        """Tokens that there are to predict in the training split."""

    def position_after(self, data: Any, start: DataPosition, step: int) -> DataPosition:
        """Return where a run that begins at `start` is after `step` steps: where the next of its chain goes on."""
        position, steps = self._position(data, start, step), start.steps + step
        return DataPosition(
            chain_steps=start.chain_steps + step, steps=steps, position=position, step_tokens=self.step_tokens
        )

    def _position(self, data: Any, start: DataPosition, step: int) -> int:
        """Return the position of step `step` of a run that begins at `start`."""
        return start.steps + step

    def step_counts(self, model: Any, data: Any, seed: int, step: int, start: DataPosition = START) -> tuple[int, int]:
        """Return the tokens that step `step` (0-based) predicts, and its training FLOPs."""
        return self.step_tokens, TRAINING_PASSES * self.step_flops(model)

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Look at the weights after step `step` (1-based) of `steps`; checkpoints hold what is put into `averaging`."""

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        """Give the model its final weights, where these are not those of the last step."""
