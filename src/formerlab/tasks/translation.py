"""Translation: predict every next token of the target, given the source."""

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from formerlab.data.pairs.streams import Numbers, PairStream, load_pairs
from formerlab.spec import AnyCount, Count
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.sentence_batch import NO_TARGET, SentenceBatch, sentence_batch
from formerlab.tasks.task import BEGINNING, TRAINING_PASSES, WHOLE, Measures, Place, Row, Share, TaskSpec
from formerlab.tasks.weight_averaging import add_weights, mean_weights

ASSUMED_LENGTH = 25
"""Tokens of a sentence that costs are predicted with before there are data."""


class Translation(TaskSpec):
    """Minimise the label-smoothed negative log-likelihood of the target's tokens (arXiv:1706.03762, section 5).

    A step is one batch of sentences of like length, about `tokens` source and `tokens` target tokens with padding.
    Validation and test losses are never smoothed.
    """

    reads: ClassVar[str] = "parallel"
    trains: ClassVar[str] = "translator"
    train_columns: ClassVar[tuple[str, ...]] = ("unsmoothed_nats",)

    kind: Literal["translation"] = "translation"
    tokens: Count = 25000
    """Source tokens, and target tokens, of a step at most, padding included."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Probability taken from the right token (eps_ls)."""
    smoothing_mass: Literal["vocabulary", "others"] = "vocabulary"
    """Where it goes: evenly to all V tokens, the right one included (as published: uniform), or to the V - 1 others."""
    average_last: AnyCount = 0
    """The final weights are the mean of this many snapshots (5 for the base model, 20 for big); 0 keeps the last."""
    average_every: Count = 1500
    """Steps between the snapshots, the last of which is that of the last step."""
    valid_pairs: Count = 3000
    """Pairs of the validation split, evenly spread, that are evaluated during training."""

    def load(self, folder: Path, split: str) -> PairStream:
        """Return the pairs of a split."""
        return load_pairs(folder, split)

    def part_count(self, data: PairStream, seed: int, step: int, start: Place = BEGINNING) -> int:
        """Return the number of parts: fewer than `accumulate` where there are fewer sentences."""
        return min(self.accumulate, len(self._pairs(data, seed, step, start)))

    def step_batches(
        self, data: PairStream, seed: int, step: int, start: Place = BEGINNING, share: Share = WHOLE
    ) -> list[Any]:
        """Return the sentences of a step; every epoch takes each pair once."""
        pairs = self._pairs(data, seed, step, start)
        parts = np.array_split(pairs, self.part_count(data, seed, step, start))
        tokens = float(data.target_lengths[pairs].sum()) / len(parts)
        return [sentence_batch(data, parts[number % len(parts)], tokens) for number in share.numbers(len(parts))]

    def valid_batches(self, data: PairStream) -> list[Any]:
        """Return the fixed validation pairs in batches of like length."""
        count = min(self.valid_pairs, len(data))
        chosen = np.unique(np.linspace(0, len(data) - 1, count).round().astype(np.int64))
        batches = (np.intersect1d(batch, chosen) for batch in data.batches(max(self.part_tokens, _longest(data))))
        return [sentence_batch(data, batch) for batch in batches if len(batch)]

    def loss(self, model: nn.Module, batch: Any) -> Float[Tensor, ""]:
        """Return the smoothed loss of a part, in nats per target token of the step."""
        return self.losses(model, batch)[0]

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return the smoothed loss of a part, and the same without smoothing."""
        logits = model(batch.source, batch.real, batch.target_in).flatten(0, 1).float()
        targets, share = batch.target_out.flatten(), float(batch.share)
        total: Tensor = smoothed_loss(logits, targets, self.label_smoothing, self.smoothing_mass) / share
        with torch.no_grad():
            return total, smoothed_loss(logits, targets, 0.0, self.smoothing_mass) / share

    def measure(self, model: nn.Module, batch: SentenceBatch) -> Measures:
        """Return the number of target tokens and their mean loss, without smoothing."""
        losses = _token_losses(model, batch)
        return batch.tokens, losses.double().sum() / batch.tokens

    def test_groups(self, data: PairStream) -> list[Numbers]:
        """Return the test sentences in batches of like length."""
        return data.batches(max(self.part_tokens, _longest(data)))

    def test_rows(self, model: Any, data: PairStream, group: Numbers) -> list[Row]:
        """Return the mean loss of every test sentence of a batch."""
        batch = sentence_batch(data, group).to(next(model.parameters()).device)
        with evaluating(model):
            losses = _token_losses(model, batch).double().sum(dim=1)
        counts = data.target_lengths[group]
        return list(zip(group.tolist(), counts.tolist(), (losses.cpu().numpy() / counts).tolist(), strict=True))

    def guessed_rows(self, model: Any, data: PairStream) -> list[Row]:
        """Return ln(vocabulary) for every test sentence."""
        return [
            (number, count, math.log(model.vocabulary)) for number, count in enumerate(data.target_lengths.tolist())
        ]

    @property
    def step_tokens(self) -> int:
        """Target tokens of a step at most."""
        return self.tokens

    def step_flops(self, model: Any) -> int:
        """Forward FLOPs of a step of sentences of 25 tokens."""
        return self.tokens * int(model.flops(ASSUMED_LENGTH, ASSUMED_LENGTH)) // ASSUMED_LENGTH

    @property
    def part_tokens(self) -> int:
        """Target tokens of a part at most."""
        return -(-self.tokens // self.accumulate)

    def epoch_tokens(self, data: PairStream) -> int:
        """Target tokens of the training split."""
        return int(data.target_lengths.sum())

    def place_after(self, data: PairStream, start: Place, step: int) -> Place:
        """Count batches of the row of epochs."""
        return self._moved(start, step, self._first(data, start) + step)

    def step_counts(
        self, model: Any, data: PairStream, seed: int, step: int, start: Place = BEGINNING
    ) -> tuple[int, int]:
        """Count target tokens, and FLOPs, without padding."""
        pairs = self._pairs(data, seed, step, start)
        sources, targets = data.source_lengths[pairs], data.target_lengths[pairs]
        return int(targets.sum()), TRAINING_PASSES * int(model.flops(sources, targets).sum())

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Add the weights to the mean of the last snapshots where one is due."""
        before_end = steps - step
        if before_end % self.average_every == 0 and before_end // self.average_every < self.average_last:
            add_weights(model, averaging)

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        """Give the model the mean of the snapshots, where there are any."""
        if averaging:
            mean_weights(model, averaging)

    def _pairs(self, data: PairStream, seed: int, step: int, start: Place) -> Numbers:
        """Return the numbers of the pairs of a step."""
        epoch, place = data.epoch_of(self.tokens, self._first(data, start) + step)
        return data.epoch(self.tokens, seed, epoch)[place]

    def _first(self, data: PairStream, start: Place) -> int:
        """Return the place of the run's first batch: where its ancestors ended, or, where they made batches of another
        size, at the beginning of the epoch after theirs.
        """
        if start.step_tokens in (0, self.tokens):
            return start.position
        epoch, begun = data.epoch_of(start.step_tokens, start.position)
        return data.epoch_size(self.tokens) * (epoch + (begun > 0))


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


def _longest(data: PairStream) -> int:
    return int(max(data.source_lengths.max(), data.target_lengths.max()))
