"""What a sweep measures beside losses and accuracies: masks, alpha per head, scores over time, one-shot compression."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch.nn import functional as F

from formerlab.cache import CompressedCache, KVCache
from formerlab.evaluation.pruning import calibration, masks
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.score_trajectories import score_trajectories
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.write import Cell
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, spread_windows, window_batches

if TYPE_CHECKING:
    from formerlab.evaluation.pruning.prune import PruneSweep

Rows = Iterable[Sequence[Cell]]


@dataclass(frozen=True)
class SweepExtras:
    """The further files of one sweep; windows are those of the stream `test` whose losses are measured."""

    model: DecoderModel
    streams: Mapping[str, Stream]
    context: int
    windows: Sequence[int]
    sweep: "PruneSweep"
    label: str

    @property
    def files(self) -> dict[str, Callable[[], Rows]]:
        """Return what makes the rows of each file."""
        return {
            "prune_masks.csv": self.masks,
            "prune_alphas.csv": lambda: self.calibrated[0],
            "prune_calibrated.csv": lambda: self.calibrated[1],
            "prune_mask_dumps.csv": self.mask_dumps,
            "prune_score_trajectories.csv": self.score_trajectories,
            "prune_one_shot.csv": self.one_shot,
        }

    def masks(self) -> Iterator[Sequence[Cell]]:
        """Yield what policies keep in a few windows."""
        chosen, batch = self._spread("test", self.sweep.mask_windows), self.sweep.batch_of(self.context, 16)
        pruned = self.sweep.configurations(self.sweep.budgets)[1:]
        with self._layers("masks", len(chosen)) as progress:
            for measure in masks.mask_measures(
                self.model, self.streams["test"], self.context, chosen, pruned, batch=batch, progress=progress
            ):
                yield *measure.configuration.cells(), *measure[1:]

    @cached_property
    def calibrated(self) -> tuple[list[Sequence[Cell]], list[Sequence[Cell]]]:
        """The alphas that are chosen on a few windows of the stream `valid`, and their losses on `test`."""
        sweep, alphas, losses = self.sweep, list[Sequence[Cell]](), list[Sequence[Cell]]()
        windows = {"valid": self._spread("valid", sweep.calibration_windows), "test": self.windows}
        budgets = sweep.calibration_budgets if sweep.calibration_windows and sweep.alphas else ()
        total = len(budgets) * calibration.windows_read(windows, sweep.alphas)
        with Progress(total, f"{self.label}, alpha per head", unit="window") as progress:
            for budget in budgets:
                chosen, rows = calibration.calibrated(
                    self.model,
                    self.streams,
                    self.context,
                    windows,
                    sweep.alphas,
                    budget,
                    batch=sweep.batch_of(self.context),
                    progress=progress,
                )
                alphas += [row for choice in chosen for row in choice.rows(budget)]
                losses += rows
        return alphas, losses

    def mask_dumps(self) -> Rows:
        """Return the masks of one head of the first window, row by row."""
        tokens = min(self.sweep.mask_dump_tokens, self.context)
        budgets = self.sweep.mask_dump_budgets
        return masks.mask_dumps(self.model, self.streams["test"], tokens, 0, budgets) if tokens else ()

    def score_trajectories(self) -> Iterator[Sequence[Cell]]:
        """Yield scores query by query."""
        chosen, batch = self._spread("test", self.sweep.score_windows), self.sweep.batch_of(self.context)
        with self._layers("scores", len(chosen)) as progress:
            yield from score_trajectories(
                self.model, self.streams["test"], self.context, chosen, batch=batch, progress=progress
            )

    def one_shot(self) -> Iterator[Sequence[Cell]]:
        """Yield losses behind compressed prompts."""
        sweep = self.sweep
        pairs = [Configuration(policy, budget) for budget in sweep.one_shot_budgets for policy in sweep.one_shot]
        windows, batch = self.windows if pairs else (), sweep.batch_of(self.context)
        with Progress((1 + len(pairs)) * len(windows), f"{self.label}, one shot", unit="window") as progress:
            yield from one_shot_losses(
                self.model, self.streams["test"], self.context, windows, pairs, batch=batch, progress=progress
            )

    def _spread(self, split: str, count: int) -> list[int]:
        return spread_windows(self.streams[split], self.context, count)

    def _layers(self, what: str, windows: int) -> Progress:
        total = self.model.spec.layers * windows
        return Progress(total, f"{self.label}, {what}", unit="layer of a window")


def one_shot_losses(
    model: DecoderModel,
    stream: Stream,
    context: int,
    windows: Sequence[int],
    configurations: Sequence[Configuration],
    *,
    batch: int = 16,
    progress: Progress | None = None,
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of prune_one_shot.csv: the loss on the second half of windows, given the compressed first half.

    The first half is the prompt; budgets are shares of it. A full cache, for comparison, comes first.
    """
    half = context // 2
    for indices, tokens in window_batches(stream, context, windows, batch):
        if tokens.shape[1] <= context:
            continue  # a partial window has no second half of the same length
        inputs = tokens.to(model.embedding.device)
        for configuration in (None, *configurations):
            cache = KVCache() if configuration is None else CompressedCache(*configuration, position=model.position)
            with evaluating(model):
                model(inputs[:, :half], attend=cache, last=1)
                logits = model(inputs[:, half:-1], attend=cache, start=half)
            targets = inputs[:, half + 1 :]
            losses = F.cross_entropy(logits.transpose(1, 2).float(), targets, reduction="none").double().mean(1)
            held = 1.0 if isinstance(cache, KVCache) else cache.kept(0).shape[-1] / half
            cells = ("full", None, None, 1.0) if configuration is None else configuration.cells()
            for window, loss in zip(indices, losses.tolist(), strict=True):
                yield *cells, held, half, window, targets.shape[1], loss
            if progress is not None:
                progress.advance(len(indices))
