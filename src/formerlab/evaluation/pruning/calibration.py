"""One alpha per layer and head, chosen on calibration windows: what a single forgetting factor leaves on the table.

A choice is made on validation windows and judged on test windows. Head by head, alpha is the one whose attention rows
come closest to the ideal ones (mean 1 - cosine, on the attention of an unpruned pass); it is compared with one alpha
for all, chosen on the same windows: by the same measure, and by the loss itself, which is the strongest single choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from formerlab.cache import Decay, Simulation, distance_to_ideal, simulate
from formerlab.cache.simulation import Seen
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.evaluation.pruning.masks import observe_unpruned
from formerlab.layers.attention import Heads, KeyHeads
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.write import Cell
from formerlab.tasks.scoring import AttendFor
from formerlab.tasks.window_losses import Stream, mean_loss, window_batches, window_losses

Alphas = Sequence[Sequence[float]]
"""Alpha of each layer and key head."""


class Headwise:
    """An `attend` that simulates Decay with an alpha of its own in every key head (Decay article, eq. 5, per head)."""

    def __init__(self, alphas: Alphas, budget: int | float, lengths: Int[Tensor, " batch"]) -> None:
        self.alphas, self.budget, self.lengths = alphas, budget, lengths
        self._realised: list[Float[Tensor, " batch"]] = []

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return the attention of a layer; heads of equal alpha are simulated together."""
        groups = q.shape[1] // k.shape[1]
        out = torch.empty_like(q)
        for alpha in sorted(set(self.alphas[layer])):
            own = [head for head, chosen in enumerate(self.alphas[layer]) if chosen == alpha]
            keys = torch.tensor(own).to(q.device, non_blocking=True)
            heads = (keys[:, None] * groups + torch.arange(groups, device=q.device)).flatten()
            simulation = Simulation(Decay(alpha=alpha), self.budget, self.lengths)
            out[:, heads] = simulation(layer, q[:, heads], k[:, keys], v[:, keys])
            self._realised += [simulation.realised_budget] * len(own)
        return out

    @property
    def realised_budget(self) -> Float[Tensor, " batch"]:
        """Entries held at the end over the length; mean over layers and heads."""
        return torch.stack(self._realised).mean(0)


class Distances(NamedTuple):
    """Mean 1 - cosine to the ideal attention rows."""

    alphas: tuple[float, ...]
    by_head: Float[Tensor, "alphas layers key_heads"]


def head_distances(
    model: DecoderModel,
    stream: Stream,
    context: int,
    windows: Sequence[int],
    alphas: Sequence[float],
    budget: int | float,
    *,
    batch: int = 16,
    progress: Progress | None = None,
) -> Distances:
    """Return how far each head's attention under each alpha is from the ideal, mean over windows and queries."""
    collected: dict[tuple[float, int], list[Tensor]] = {}

    def observe(layer: int, seen: Seen) -> None:
        key_heads = seen.keys.shape[1]
        groups = seen.logits.shape[1] // key_heads
        for alpha in alphas:
            pruned, _ = simulate(Decay(alpha=alpha), seen.logits, budget, groups=groups)
            own, full = (square.flatten(0, 1).unsqueeze(1) for square in (pruned, seen.probabilities))
            distance = distance_to_ideal(own, full, budget).view(len(pruned), key_heads, groups).mean(2)
            collected.setdefault((alpha, layer), []).append(distance)

    for _, tokens in window_batches(stream, context, windows, batch):
        observe_unpruned(model, tokens, observe)
        if progress is not None:
            progress.advance(len(tokens))
    layers = 1 + max(layer for _, layer in collected)
    means = [[torch.cat(collected[alpha, layer]).mean(0) for layer in range(layers)] for alpha in alphas]
    return Distances(tuple(alphas), torch.stack([torch.stack(row) for row in means]).cpu())


class Choice(NamedTuple):
    """A way of choosing alpha, and what it chose."""

    name: str
    alphas: list[list[float]]
    distances: list[list[float]]
    """Of the chosen alphas, on the calibration windows."""

    def rows(self, budget: int | float) -> Iterator[tuple[Cell, ...]]:
        """Yield the cells of prune_alphas.csv."""
        for layer, (alphas, distances) in enumerate(zip(self.alphas, self.distances, strict=True)):
            for head, (alpha, distance) in enumerate(zip(alphas, distances, strict=True)):
                yield budget, self.name, layer, head, alpha, distance


def choices(distances: Distances, losses: Mapping[float, float]) -> list[Choice]:
    """Return the choice per head, and the single alphas of least distance and of least loss (by alpha, in nats)."""
    by_head = distances.by_head
    alphas = distances.alphas
    own = by_head.argmin(0)
    single = int(by_head.flatten(1).mean(1).argmin())
    best = alphas.index(min(alphas, key=lambda alpha: losses[alpha]))
    places = {
        "per_head": own,
        "single_by_distance": torch.full_like(own, single),
        "single_by_loss": torch.full_like(own, best),
    }
    return [
        Choice(
            name,
            [[alphas[place] for place in row] for row in chosen.tolist()],
            by_head.gather(0, chosen.unsqueeze(0)).squeeze(0).tolist(),
        )
        for name, chosen in places.items()
    ]


def windows_read(windows: Mapping[str, Sequence[int]], alphas: Sequence[float]) -> int:
    """Return how many windows `calibrated` reads: `valid` for each alpha and for distances, `test` thrice."""
    return (len(alphas) + 1) * len(windows["valid"]) + 3 * len(windows["test"])


def calibrated(
    model: DecoderModel,
    streams: Mapping[str, Stream],
    context: int,
    windows: Mapping[str, Sequence[int]],
    alphas: Sequence[float],
    budget: int | float,
    *,
    batch: int = 16,
    progress: Progress | None = None,
) -> tuple[list[Choice], list[tuple[Cell, ...]]]:
    """Choose on the windows of the split `valid`; return the choices and the rows of their losses on `test`.

    `windows` are named by split, as the streams are. A single alpha is simulated like any other policy, so its losses
    are those of the sweep.
    """
    losses = {
        alpha: mean_loss(
            window_losses(
                model,
                streams["valid"],
                context,
                batch=batch,
                attend_for=Configuration(Decay(alpha=alpha), budget).attend,
                windows=windows["valid"],
                progress=progress,
            )
        )
        for alpha in alphas
    }
    distances = head_distances(
        model, streams["valid"], context, windows["valid"], alphas, budget, batch=batch, progress=progress
    )
    chosen = choices(distances, losses)
    rows: list[tuple[Cell, ...]] = []
    for choice in chosen:
        attend_for: AttendFor = partial(Headwise, choice.alphas, budget)
        for loss in window_losses(
            model,
            streams["test"],
            context,
            batch=batch,
            attend_for=attend_for,
            windows=windows["test"],
            progress=progress,
        ):
            rows.append((budget, choice.name, loss.realised_budget, *loss[:3]))
    return chosen, rows
