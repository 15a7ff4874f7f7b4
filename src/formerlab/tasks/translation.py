"""Translation: predict every next token of the target, given the source."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from formerlab.data.pairs.streams import Numbers, PairStream, load_pairs
from formerlab.spec import AnyCount, Count
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.task import SINGLE_PROCESS, START, TRAINING_PASSES, DataPosition, Measures, Row, Shard, TaskSpec

ASSUMED_LENGTH = 25
"""Tokens of a sentence, assumed in costs before there are data."""
NO_TARGET = -100
"""Target of a padded position: it has no loss."""


@dataclass(frozen=True)
class SentenceBatch:
    """Source sentences, and target sentences as the decoder reads them and, shifted by one, as it must say them."""

    source: Int[Tensor, "batch source"]
    real: Bool[Tensor, "batch source"]
    """Which source tokens are real, not padding."""
    target_in: Int[Tensor, "batch target"]
    """The token that ends a sentence, then the target without its end."""
    target_out: Int[Tensor, "batch target"]
    """The target with its end; padding is `NO_TARGET`."""
    tokens: int
    """Target tokens, ends included."""
    share: float
    """Divisor of the summed loss: target tokens of the whole step over its parts."""

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


def padded(sentences: list[Numbers], fill: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """Return sentences as rows of one length, and which of their tokens are real."""
    rows = pad_sequence([torch.from_numpy(sentence) for sentence in sentences], batch_first=True, padding_value=fill)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return rows, torch.arange(rows.shape[1]) < lengths[:, None]


class Translation(TaskSpec):
    """Minimise the label-smoothed negative log-likelihood of the target's tokens (arXiv:1706.03762, section 5).

    A step is one batch of sentences of like length, about `tokens` source and `tokens` target tokens with padding.
    Validation and test losses are never smoothed.
    """

    reads: ClassVar[str] = "parallel"
    trains: ClassVar[str] = "translator"
    train_columns: ClassVar[tuple[str, ...]] = ("unsmoothed_nats",)
    dynamic_shapes: ClassVar[bool | None] = None  # lengths differ from step to step

    kind: Literal["translation"] = "translation"
    tokens: Count = 25000
    """Source tokens, and target tokens, of a step at most, padding included."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Probability taken from the right token (eps_ls)."""
    smoothing_mass: Literal["vocabulary", "others"] = "vocabulary"
    """Who shares it evenly: all V tokens, the right one included (as published: uniform), or the V - 1 others."""
    average_last: AnyCount = 0
    """The final weights are the mean of this many snapshots (5 for the base model, 20 for big); 0 keeps the last."""
    average_every: Count = 1500
    """Steps between the snapshots, the last of which is that of the last step."""
    valid_pairs: Count = 3000
    """Pairs of the validation split, evenly spread, that are evaluated during training."""

    def load(self, folder: Path, split: str) -> PairStream:
        return load_pairs(folder, split)

    def micro_batch_count(self, data: PairStream, seed: int, step: int, start: DataPosition = START) -> int:
        """Return the number of parts: fewer than `accumulate` where there are fewer sentences."""
        return min(self.accumulate, len(self._pairs(data, seed, step, start)))

    def step_batches(
        self, data: PairStream, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> list[Any]:
        """Return the sentences of a step; every epoch takes each pair once."""
        pairs = self._pairs(data, seed, step, start)
        parts = np.array_split(pairs, self.micro_batch_count(data, seed, step, start))
        tokens = float(data.target_lengths[pairs].sum()) / len(parts)
        return [sentence_batch(data, parts[number], tokens) for number in shard.indices(len(parts))]

    def valid_batches(self, data: PairStream) -> list[Any]:
        count = min(self.valid_pairs, len(data))
        chosen = np.unique(np.linspace(0, len(data) - 1, count).round().astype(np.int64))
        batches = (np.intersect1d(batch, chosen) for batch in data.batches(max(self.micro_batch_tokens, data.longest)))
        return [sentence_batch(data, batch) for batch in batches if len(batch)]

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return the smoothed loss of a part, in nats per target token of the step, and the same without smoothing."""
        logits = model(batch.source, batch.real, batch.target_in).flatten(0, 1).float()
        targets, share = batch.target_out.flatten(), float(batch.share)
        total: Tensor = smoothed_loss(logits, targets, self.label_smoothing, self.smoothing_mass) / share
        with torch.no_grad():
            return total, smoothed_loss(logits, targets, 0.0, self.smoothing_mass) / share

    def measure(self, model: nn.Module, batch: SentenceBatch) -> Measures:
        losses = _token_losses(model, batch)
        return batch.tokens, losses.double().sum() / batch.tokens

    def test_groups(self, data: PairStream) -> list[Numbers]:
        return data.batches(max(self.micro_batch_tokens, data.longest))

    def test_rows(self, model: Any, data: PairStream, group: Numbers) -> list[Row]:
        batch = sentence_batch(data, group).to(next(model.parameters()).device)
        with evaluating(model):
            losses = _token_losses(model, batch).double().sum(dim=1)
        counts = data.target_lengths[group]
        return list(zip(group.tolist(), counts.tolist(), (losses.cpu().numpy() / counts).tolist(), strict=True))

    def guessed_rows(self, model: Any, data: PairStream) -> list[Row]:
        uniform, counts = math.log(model.vocabulary), enumerate(data.target_lengths.tolist())
        return [(number, count, uniform) for number, count in counts]

    @property
    def step_tokens(self) -> int:
        return self.tokens

    def step_flops(self, model: Any) -> int:
        """Forward FLOPs of a step of sentences of 25 tokens."""
        return self.tokens * int(model.flops(ASSUMED_LENGTH, ASSUMED_LENGTH)) // ASSUMED_LENGTH

    @property
    def micro_batch_tokens(self) -> int:
        return -(-self.tokens // self.accumulate)

    def epoch_tokens(self, data: PairStream) -> int:
        return int(data.target_lengths.sum())

    def step_counts(
        self, model: Any, data: PairStream, seed: int, step: int, start: DataPosition = START
    ) -> tuple[int, int]:
        """Count target tokens, and FLOPs, without padding."""
        pairs = self._pairs(data, seed, step, start)
        sources, targets = data.source_lengths[pairs], data.target_lengths[pairs]
        return int(targets.sum()), TRAINING_PASSES * int(model.flops(sources, targets).sum())

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Add the weights to the mean of the last snapshots where one is due."""
        before_end = steps - step
        if before_end % self.average_every == 0 and before_end // self.average_every < self.average_last:
            averaging["snapshots"] = averaging.get("snapshots", 0) + 1
            sums = averaging.setdefault("sums", {})
            for name, weight in model.state_dict().items():  # in float64, so that the order of sums does not show
                sums[name] = sums.get(name, 0.0) + weight.double().cpu()

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        if averaging:
            means = {name: total / averaging["snapshots"] for name, total in averaging["sums"].items()}
            model.load_state_dict(means)

    def _pairs(self, data: PairStream, seed: int, step: int, start: DataPosition) -> Numbers:
        """Return the numbers of the pairs of a step."""
        epoch, number = divmod(self._position(data, start, step), data.epoch_size(self.tokens))
        return data.epoch(self.tokens, seed, epoch)[number]

    def _position(self, data: PairStream, start: DataPosition, step: int) -> int:
        """Count batches of the row of epochs, from where the ancestors ended; after ancestors with batches of another
        size, from the next epoch.
        """
        if start.step_tokens in (0, self.tokens):
            return start.position + step
        epoch, begun = divmod(start.position, data.epoch_size(start.step_tokens))
        return data.epoch_size(self.tokens) * (epoch + (begun > 0)) + step


def smoothed_loss(
    logits: Float[Tensor, "tokens vocabulary"], targets: Tensor, smoothing: float, mass: str
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy with (1 - eps) on the target and eps spread evenly (arXiv:1512.00567, section 7).

    mass `vocabulary`: eps / V on every token. mass `others`: eps / (V - 1) on every token but the target.
    """
    if mass == "others":  # eps / (V-1) on V-1 tokens is eps V/(V-1) / V on all of them
        smoothing *= logits.shape[-1] / (logits.shape[-1] - 1)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum", ignore_index=NO_TARGET)


def _token_losses(model: nn.Module, batch: SentenceBatch) -> Float[Tensor, "batch target"]:
    logits: Tensor = model(batch.source, batch.real, batch.target_in)
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), batch.target_out.flatten(), reduction="none", ignore_index=NO_TARGET
    )
    return losses.view(batch.target_out.shape)
