"""Translation: predict the next token of the target, given the source."""

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
"""Number of tokens per sentence in cost estimates without data."""
NO_TARGET = -100
"""Target of a padded position, which has no loss."""


@dataclass(frozen=True)
class SentenceBatch:
    """A batch of sentence pairs."""

    source: Int[Tensor, "batch source"]
    source_mask: Bool[Tensor, "batch source"]
    """False at padding."""
    target_in: Int[Tensor, "batch target"]
    """The end-of-sentence token, followed by the target without its end."""
    target_out: Int[Tensor, "batch target"]
    """The target with its end-of-sentence token; padding is `NO_TARGET`."""
    tokens: int
    """Number of target tokens, including the ends of sentences."""
    loss_divisor: float
    """Divisor of the summed loss: target tokens of the step divided by its number of micro-batches."""

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "SentenceBatch":
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "SentenceBatch":
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "SentenceBatch":
        names = ("source", "source_mask", "target_in", "target_out")
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **tensors)


def sentence_batch(pairs: PairStream, indices: Iterable[Any], loss_divisor: float | None = None) -> SentenceBatch:
    """Return the pairs with these indices as one batch; `loss_divisor` defaults to the target tokens of the batch."""
    indices = [int(index) for index in indices]
    source, source_mask = padded([pairs.sentence(index, 0) for index in indices], pairs.end)
    target, target_mask = padded([pairs.sentence(index, 1) for index in indices], pairs.end)
    first = torch.full((len(indices), 1), pairs.end)
    target_in = torch.cat((first, target[:, :-1]), dim=1)
    target_out = target.masked_fill(~target_mask, NO_TARGET)
    tokens = int(target_mask.sum())
    divisor = float(tokens) if loss_divisor is None else loss_divisor
    return SentenceBatch(source, source_mask, target_in, target_out, tokens, divisor)


def padded(sentences: list[Numbers], fill: int) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """Return padded sentences, and a mask that is False at padding."""
    rows = pad_sequence([torch.from_numpy(sentence) for sentence in sentences], batch_first=True, padding_value=fill)
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return rows, torch.arange(rows.shape[1]) < lengths[:, None]


class Translation(TaskSpec):
    """Minimise the label-smoothed negative log-likelihood of the target's tokens (arXiv:1706.03762, section 5).

    A step is one batch of sentences of similar length. Validation and test losses are not smoothed.
    """

    reads: ClassVar[str] = "parallel"
    trains: ClassVar[str] = "translator"
    train_columns: ClassVar[tuple[str, ...]] = ("unsmoothed_nats",)
    dynamic_shapes: ClassVar[bool | None] = None  # lengths differ from step to step

    kind: Literal["translation"] = "translation"
    tokens: Count = 25000
    """Maximum number of source tokens, and of target tokens, per step, including padding."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Probability mass removed from the true token (eps_ls)."""
    smoothing_mass: Literal["vocabulary", "others"] = "vocabulary"
    """Tokens that get this mass in equal amounts: all V tokens (uniform, as published) or the V - 1 other tokens."""
    average_last: AnyCount = 0
    """Number of snapshots whose mean gives the final weights (base model: 5, big model: 20); 0 uses the last
    weights."""
    average_every: Count = 1500
    """Number of steps between snapshots; the last snapshot is after the last step."""
    valid_pairs: Count = 3000
    """Number of validation pairs, evenly spaced, that are evaluated during training."""

    def load(self, folder: Path, split: str) -> PairStream:
        return load_pairs(folder, split)

    def micro_batch_count(self, data: PairStream, seed: int, step: int, start: DataPosition = START) -> int:
        """Return `accumulate`, or the number of pairs in the step if it is lower."""
        return min(self.accumulate, len(self._pairs(data, seed, step, start)))

    def step_batches(
        self, data: PairStream, seed: int, step: int, start: DataPosition = START, shard: Shard = SINGLE_PROCESS
    ) -> list[Any]:
        """Return the micro-batches of a step; each pair occurs once per epoch."""
        pairs = self._pairs(data, seed, step, start)
        micro_batches = np.array_split(pairs, self.micro_batch_count(data, seed, step, start))
        tokens = float(data.target_lengths[pairs].sum()) / len(micro_batches)
        return [sentence_batch(data, micro_batches[index], tokens) for index in shard.indices(len(micro_batches))]

    def valid_batches(self, data: PairStream) -> list[Any]:
        count = min(self.valid_pairs, len(data))
        spread = np.unique(np.linspace(0, len(data) - 1, count).round().astype(np.int64))
        batches = (np.intersect1d(batch, spread) for batch in data.batches(max(self.micro_batch_tokens, data.longest)))
        return [sentence_batch(data, batch) for batch in batches if len(batch)]

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        """Return the loss of a micro-batch with and without smoothing, in nats per target token of the step."""
        logits = model(batch.source, batch.source_mask, batch.target_in).flatten(0, 1).float()
        targets, divisor = batch.target_out.flatten(), float(batch.loss_divisor)
        total: Tensor = smoothed_loss(logits, targets, self.label_smoothing, self.smoothing_mass) / divisor
        with torch.no_grad():
            return total, smoothed_loss(logits, targets, 0.0, self.smoothing_mass) / divisor

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
        """Return the forward FLOPs of a step with sentences of `ASSUMED_LENGTH` tokens."""
        return self.tokens * int(model.flops(ASSUMED_LENGTH, ASSUMED_LENGTH)) // ASSUMED_LENGTH

    @property
    def micro_batch_tokens(self) -> int:
        return -(-self.tokens // self.accumulate)

    def epoch_tokens(self, data: PairStream) -> int:
        return int(data.target_lengths.sum())

    def step_counts(
        self, model: Any, data: PairStream, seed: int, step: int, start: DataPosition = START
    ) -> tuple[int, int]:
        """Return the target tokens of a step, and its training FLOPs, without padding."""
        pairs = self._pairs(data, seed, step, start)
        sources, targets = data.source_lengths[pairs], data.target_lengths[pairs]
        return int(targets.sum()), TRAINING_PASSES * int(model.flops(sources, targets).sum())

    def after_step(self, model: nn.Module, step: int, steps: int, averaging: dict[str, Any]) -> None:
        """Add the weights to the sums of snapshots if this step is one of the last snapshots."""
        remaining = steps - step
        if remaining % self.average_every == 0 and remaining // self.average_every < self.average_last:
            averaging["snapshots"] = averaging.get("snapshots", 0) + 1
            sums = averaging.setdefault("sums", {})
            for name, weight in model.state_dict().items():
                sums[name] = sums.get(name, 0.0) + weight.double().cpu()

    def finish(self, model: nn.Module, averaging: dict[str, Any]) -> None:
        if averaging:
            means = {name: total / averaging["snapshots"] for name, total in averaging["sums"].items()}
            model.load_state_dict(means)

    def _pairs(self, data: PairStream, seed: int, step: int, start: DataPosition) -> Numbers:
        epoch, index = divmod(self._position(data, start, step), data.batches_per_epoch(self.tokens))
        return data.epoch(self.tokens, seed, epoch)[index]

    def _position(self, data: PairStream, start: DataPosition, step: int) -> int:
        """Return the position in batches; if the ancestors had another batch size, the run starts with a new epoch."""
        if start.step_tokens in (0, self.tokens):
            return start.position + step
        epoch, batches = divmod(start.position, data.batches_per_epoch(start.step_tokens))
        return data.batches_per_epoch(self.tokens) * (epoch + (batches > 0)) + step


def smoothed_loss(
    logits: Float[Tensor, "tokens vocabulary"], targets: Tensor, smoothing: float, mass: str
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy with (1 - eps) on the target and eps spread evenly (arXiv:1512.00567, section 7).

    With mass "vocabulary", every token gets eps / V; with mass "others", every token except the target gets
    eps / (V - 1).
    """
    if mass == "others":  # equals smoothing over all V tokens with eps V / (V - 1)
        smoothing *= logits.shape[-1] / (logits.shape[-1] - 1)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum", ignore_index=NO_TARGET)


def _token_losses(model: nn.Module, batch: SentenceBatch) -> Float[Tensor, "batch target"]:
    logits: Tensor = model(batch.source, batch.source_mask, batch.target_in)
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), batch.target_out.flatten(), reduction="none", ignore_index=NO_TARGET
    )
    return losses.view(batch.target_out.shape)
