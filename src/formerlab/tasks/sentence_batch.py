"""Sentence pairs padded into tensors."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from formerlab.data.pairs.streams import PairStream

NO_TARGET = -100
"""Target of a padded position: it has no loss."""


@dataclass(frozen=True)
class SentenceBatch:
    """Source sentences, and target sentences shifted by one: what the decoder reads, and what it must say."""

    source: Int[Tensor, "batch source"]
    real: Bool[Tensor, "batch source"]
    """Which source tokens are no padding."""
    target_in: Int[Tensor, "batch target"]
    """The end of a sentence, then the target without its own end: it begins as the sentence before it ended."""
    target_out: Int[Tensor, "batch target"]
    """The target with its end; padding is `NO_TARGET`."""
    tokens: int
    """Target tokens, ends included."""
    share: float
    """Target tokens that the summed loss is divided by: those of the whole step, divided by its parts."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "SentenceBatch":
        """Return the same batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "SentenceBatch":
        """Return the same batch where a GPU can copy it from by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "SentenceBatch":
        names = ("source", "real", "target_in", "target_out")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **changed)


def sentence_batch(pairs: PairStream, numbers: Iterable[Any], share: float | None = None) -> SentenceBatch:
    """Return the pairs of these numbers as one batch; `share` defaults to its own target tokens."""
    numbers = [int(number) for number in numbers]
    source, real = padded([pairs.sentence(number, 0) for number in numbers], pairs.end)
    target, real_target = padded([pairs.sentence(number, 1) for number in numbers], pairs.end)
    first = torch.full((len(numbers), 1), pairs.end)
    target_in = torch.cat((first, target[:, :-1]), dim=1)
    target_out = target.masked_fill(~real_target, NO_TARGET)
    tokens = int(real_target.sum())
    return SentenceBatch(source, real, target_in, target_out, tokens, float(tokens) if share is None else share)


def padded(sentences: list[np.ndarray], fill: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """Return sentences as rows of one length, and which of their tokens are real."""
    lengths = np.array([len(sentence) for sentence in sentences])
    real = np.arange(lengths.max()) < lengths[:, None]
    rows = np.full(real.shape, fill, dtype=np.int64)
    rows[real] = np.concatenate(sentences)
    return torch.from_numpy(rows), torch.from_numpy(real)
