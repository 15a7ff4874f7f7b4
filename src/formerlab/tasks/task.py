"""What every task answers; the training stage knows a task by these names alone."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from formerlab.rows import Cell
from formerlab.spec import Spec

Row = Sequence[Cell]

TRAINING_PASSES = 3
"""One forward, and a backward of twice its products: gradients by inputs and by weights."""


class TaskSpec(Spec, ABC):
    """Batches, loss, evaluation and test rows of one kind of data and model.

    Everything is pure: a batch in (data, seed, step), a row in (model, data). `data` is whatever `load` returns, and a
    batch anything with `to(device)`.
    """

    reads: ClassVar[str]
    """Kind of data set."""
    trains: ClassVar[str]
    """Kind of model."""
    eval_columns: ClassVar[tuple[str, ...]] = ("tokens", "loss_nats")
    """Columns of eval.csv that `measure` fills; all start with these two."""
    test_columns: ClassVar[tuple[str, ...]] = ("window", "tokens", "loss_nats")
    """Columns of test.csv; all start with these three."""

    def check(self, model: Any) -> None:
        """Raise ValueError, naming both keys, where the model cannot do this task."""
        if model.kind != self.trains:
            raise ValueError(
                f"task.kind={self.model_dump()['kind']} trains model.kind={self.trains}, not {model.kind}; name another"
            )

    @abstractmethod
    def load(self, folder: Path, split: str) -> Any:
        """Return a split (train, valid, test) of the data prepared in `folder`. Raises UserError for damaged files."""

    @abstractmethod
    def step_batches(self, data: Any, seed: int, step: int) -> Sequence[Any]:
        """Return the batch of optimizer step `step` (0-based) in the parts that are processed one after another."""

    @abstractmethod
    def valid_batches(self, data: Any) -> Sequence[Any]:
        """Return the fixed validation batches."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return what training minimises on one part; the step takes the mean over its parts."""

    @abstractmethod
    def measure(self, model: nn.Module, batch: Any) -> tuple[int | float, ...]:
        """Return the values of `eval_columns`: predicted tokens, their mean negative log-likelihood in nats, ..."""

    @abstractmethod
    def test_rows(self, model: Any, folder: Path) -> list[Row]:
        """Return a row of `test_columns` per held-out example: its number, predicted tokens, mean loss in nats, ..."""

    @abstractmethod
    def guessed_rows(self, model: Any, folder: Path) -> list[Row]:
        """Return the test rows of a uniform guess with the output of the spec `model`: what a diverged run is worth."""

    @property
    @abstractmethod
    def step_tokens(self) -> int:
        """Tokens that a step predicts, as far as that is known without data."""

    @abstractmethod
    def step_flops(self, model: Any) -> int:
        """Forward FLOPs of a step, as far as they are known without data."""

    @property
    @abstractmethod
    def part_tokens(self) -> int:
        """Positions whose activations are in memory at once."""

    def tokens_until(self, data: Any, seed: int, step: int) -> int:
        """Tokens predicted in the first `step` steps."""
        del data, seed
        return step * self.step_tokens

    def flops_until(self, model: Any, data: Any, seed: int, step: int) -> int:
        """Training FLOPs of the first `step` steps."""
        del data, seed
        return TRAINING_PASSES * step * self.step_flops(model)

    def after_step(self, model: nn.Module, step: int, steps: int, kept: dict[str, Any]) -> None:
        """Look at the weights after step `step` (1-based) of `steps`; what checkpoints must hold goes into `kept`."""

    def finish(self, model: nn.Module, kept: dict[str, Any]) -> None:
        """Give the model its final weights after the last step, where they are not simply its last."""
