"""Language modelling: predict the next token."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor, nn

from formerlab.data.manifest import read_manifest
from formerlab.data.text.streams import load_stream
from formerlab.errors import UserError
from formerlab.spec import Count, Size
from formerlab.tasks.task import SINGLE_PROCESS, START, DataPosition, Measures, Row, Shard, TaskSpec
from formerlab.tasks.window_losses import window_documents, window_groups, window_losses

Windows = Int[Tensor, "batch window"]
Proportion = Annotated[float, Field(ge=0, le=1)]


class HeldOut(NamedTuple):
    """A held-out token stream."""

    stream: NDArray[np.unsignedinteger]
    documents: list[int]
    """The document of each window."""


class LanguageModeling(TaskSpec):
    """Minimise the mean negative log-likelihood of the next token, in nats, over random windows of a token stream."""

    reads: ClassVar[str] = "text"
    trains: ClassVar[str] = "decoder"
    test_columns: ClassVar[tuple[str, ...]] = (*TaskSpec.test_columns, "document")

    kind: Literal["language_modeling"] = "language_modeling"
    context: Size = 1024
    """Number of predicted tokens per training sequence; its window is one token longer."""
    batch: Count = 8
    """Number of sequences per optimizer step, over all micro-batches."""
    valid_windows: Count = 64
    """Number of windows of the validation stream that are evaluated during training."""
    stretch: tuple[Proportion, Proportion] = (0.0, 1.0)
    """Start and end of the training data as fractions of the training stream."""

    @field_validator("stretch", mode="before")
    @classmethod
    def _list_to_tuple(cls, stretch: Any) -> Any:
        """Convert a list from YAML to a tuple, which the strict validation of configurations requires."""
        return tuple(stretch) if isinstance(stretch, list) else stretch

    @field_validator("stretch")
    @classmethod
    def _not_empty(cls, stretch: tuple[float, float]) -> tuple[float, float]:
        if stretch[0] >= stretch[1]:
            raise ValueError("is empty: give two fractions of the training stream, the first below the second")
        return stretch

    def check(self, model: Any) -> None:
        super().check(model)
        if self.context > model.context:
            raise ValueError(f"task.context={self.context} exceeds model.context={model.context}")

    def load(self, folder: Path, split: str) -> NDArray[np.unsignedinteger]:
        """Return the memory-mapped token stream of a split; the training stream is cut to `stretch`."""
        stream = load_stream(folder, split)
        if split != "train":
            return stream
        first, end = (round(fraction * len(stream)) for fraction in self.stretch)
        return stream[first:end]

    def step_batches(
        self,
        data: NDArray[np.unsignedinteger],
        seed: int,
        step: int,
        start: DataPosition = START,
        shard: Shard = SINGLE_PROCESS,
    ) -> list[Windows]:
        size, step = self.batch // self.accumulate, start.steps + step
        firsts = [size * index for index in shard.indices(self.accumulate)]
        return [self.train_batch(data, seed, step, slice(first, first + size)) for first in firsts]

    def train_batch(
        self, stream: NDArray[np.unsignedinteger], seed: int, step: int, chosen: slice = slice(None)
    ) -> Windows:
        """Return the windows `chosen` (a slice of the batch) of an optimizer step, sampled with replacement.

        The windows depend only on (stream, seed, step), and `step` includes the steps of the ancestors on this data
        set. Runs with the same seed and parent therefore read the same tokens in the same order.
        """
        random = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, step]))
        starts = random.integers(0, self._last_start(stream), size=self.batch, endpoint=True)
        return self._windows(stream, starts[chosen])

    def valid_batches(self, stream: NDArray[np.unsignedinteger]) -> list[Windows]:
        last = self._last_start(stream)
        count = min(self.valid_windows, last + 1)
        starts = np.linspace(0, last, count).astype(np.int64)
        size = self.batch // self.accumulate
        return [self._windows(stream, starts[i : i + size]) for i in range(0, count, size)]

    def losses(self, model: nn.Module, batch: Windows) -> tuple[Tensor, ...]:
        """Return the mean negative log-likelihood per token, nats, float32."""
        return (model(batch[:, :-1], targets=batch[:, 1:]),)

    def measure(self, model: nn.Module, batch: Windows) -> Measures:
        return batch.shape[0] * (batch.shape[1] - 1), *self.losses(model, batch)

    def held_out(self, folder: Path) -> HeldOut:
        """Return the held-out stream and the document of each window."""
        stream, end = load_stream(folder, "test"), read_manifest(folder)["tokenizer"]["end_of_text"]
        return HeldOut(stream, window_documents(stream, self.context, end).tolist())

    def test_groups(self, data: HeldOut) -> list[list[int]]:
        return window_groups(data.stream, self.context, range(len(data.documents)), self.batch // self.accumulate)

    def test_rows(self, model: Any, data: HeldOut, group: list[int]) -> list[Row]:
        losses = window_losses(model, data.stream, self.context, batch=len(group), windows=group)
        return [(*row[:3], data.documents[row.window]) for row in losses]

    def guessed_rows(self, model: Any, data: HeldOut) -> list[Row]:
        uniform, last = math.log(model.vocabulary), len(data.stream) - 1
        counts = [min(self.context, last - window * self.context) for window in range(len(data.documents))]
        return [(window, count, uniform, data.documents[window]) for window, count in enumerate(counts)]

    @property
    def step_tokens(self) -> int:
        return self.batch * self.context

    def epoch_tokens(self, data: NDArray[np.unsignedinteger]) -> int:
        return len(data) - 1

    def step_flops(self, model: Any) -> int:
        return self.batch * int(model.flops(self.context))

    @property
    def micro_batch_tokens(self) -> int:
        return self.batch // self.accumulate * self.context

    def _windows(self, stream: NDArray[np.unsignedinteger], starts: NDArray[np.int64]) -> Windows:
        rows = [np.asarray(stream[start : start + self.context + 1], dtype=np.int64) for start in starts]
        return torch.from_numpy(np.stack(rows))

    def _last_start(self, stream: NDArray[np.unsignedinteger]) -> int:
        last = len(stream) - self.context - 1
        if last < 0:
            needs = f"task.context={self.context} needs {self.context + 1} tokens, but the stream has {len(stream)}"
            raise UserError(f"{needs}: lower task.context, use more text or a longer task.stretch")
        return last
