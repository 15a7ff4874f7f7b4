"""Which keys policies choose on the attention of an unpruned forward pass: measured, and row by row (Fig. 3)."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache import H2O, Decay, Full, Ideal, Local, Simulation, simulate
from formerlab.cache.measures import cosine_distance, early_weights, ideal_attention, means_over_kept, place_weights
from formerlab.cache.simulation import Seen
from formerlab.evaluation.pruning.configuration import Configuration
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.results.write import Cell
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, window_batches

Square = Float[Tensor, "batch heads time time"]
SquareMask = Bool[Tensor, "batch heads time time"]
Share = Float[Tensor, " batch"]
DUMPED = (Ideal(), Local(), H2O(), Decay(alpha=0.2), Decay(alpha=0.8))
"""The policies of Fig. 3 of the Decay article."""


class MaskMeasure(NamedTuple):
    """One measure of the keys that a configuration keeps in one window: mean over layers, heads and queries."""

    configuration: Configuration
    window: int
    metric: str
    value: float


def measures(pruned: Square, ideal: Square, visible: SquareMask) -> dict[str, Share]:
    """Return the measures of one layer, given the attention under a policy and the ideal one of its budget.

    Share of kept keys among the first 40 %, the first 10 % and the last 40 % of the positions seen so far, their mean
    position, and 1 - cosine between the attention rows and those of the best choice; an attention sink dominates the
    cosine, so once without position 0.
    """
    time, device, precise = visible.shape[-1], visible.device, pruned.double()
    marks = [early_weights(time, early, device) for early in (0.4, 0.1, 0.6)]
    early, early_10, not_recent, place = means_over_kept(
        visible, torch.stack([*marks, place_weights(time, device)], dim=-1)
    )
    return {
        "early_share": early,
        "early_share_10": early_10,
        "mean_position": place,
        "recent_share": 1 - not_recent,
        "distance_to_ideal": cosine_distance(precise, ideal),
        "distance_to_ideal_without_first": cosine_distance(precise, ideal, skip=1),
    }


def observe_unpruned(
    model: DecoderModel, tokens: Tensor, observe: Callable[[int, Seen], None], progress: Progress | None = None
) -> None:
    """Read windows of T + 1 tokens without pruning; `observe` gets each layer's number and attention.

    `progress` counts layers of windows.
    """

    def observed(layer: int, seen: Seen) -> None:
        observe(layer, seen)
        if progress is not None:
            progress.advance(len(tokens))

    with evaluating(model):
        model(tokens[:, :-1].to(model.embedding.device), attend=Simulation(Full(), 1.0, observe=observed))


def mask_measures(
    model: DecoderModel,
    stream: Stream,
    context: int,
    windows: Sequence[int],
    configurations: Sequence[Configuration],
    *,
    batch: int = 16,
    progress: Progress | None = None,
) -> Iterator[MaskMeasure]:
    """Yield every measure of every configuration and window.

    All choose from the attention logits of the same forward pass without pruning, so that the drift of pruned hidden
    states plays no part.
    """
    for indices, tokens in window_batches(stream, context, windows, batch):
        observer = _Observer(configurations)
        observe_unpruned(model, tokens, observer, progress)
        values = torch.stack([torch.stack(layers).mean(0) for layers in observer.layers.values()]).tolist()
        for (configuration, metric), row in zip(observer.layers, values, strict=True):
            for window, value in zip(indices, row, strict=True):
                yield MaskMeasure(configuration, window, metric, value)


class _Observer:
    """Lets every configuration choose from each layer's attention, and collects the measures layer by layer."""

    def __init__(self, configurations: Sequence[Configuration]) -> None:
        self.states: dict[Configuration, dict[str, Tensor]] = {configuration: {} for configuration in configurations}
        self.layers: dict[tuple[Configuration, str], list[Share]] = defaultdict(list)

    def __call__(self, layer: int, seen: Seen) -> None:
        groups = seen.logits.shape[1] // seen.keys.shape[1]
        budgets = {configuration.budget for configuration in self.states}  # ideals sort every row: once is enough
        ideals = {
            budget: ideal_attention(seen.probabilities, budget).double() for budget in budgets
        }  # each sorts all rows
        for configuration, state in self.states.items():
            pruned, kept = simulate(
                configuration.policy,
                seen.logits,
                configuration.budget,
                groups=groups,
                keys=seen.keys,
                values=seen.values,
                state=state,
                layer=layer,
            )
            for metric, value in measures(pruned, ideals[configuration.budget], kept).items():
                self.layers[configuration, metric].append(value)


def mask_dumps(
    model: DecoderModel, stream: Stream, tokens: int, window: int, budgets: Sequence[int | float]
) -> Iterator[tuple[Cell, ...]]:
    """Yield a row per policy and query: `kept` has a 1 for every key that the query sees.

    All policies choose from the attention of the same unpruned pass, in head 0 of the middle layer. Windows are
    `tokens` long, and their budgets are shares of that length.
    """
    seen_layers: list[Seen] = []
    ((_, batch),) = window_batches(stream, tokens, [window], 1)
    observe_unpruned(model, batch, lambda _, seen: seen_layers.append(seen))
    layer = len(seen_layers) // 2
    seen = seen_layers[layer]
    groups = seen.logits.shape[1] // seen.keys.shape[1]
    for budget in budgets:
        for policy in DUMPED:
            _, visible = simulate(policy, seen.logits, budget, groups=groups, keys=seen.keys, values=seen.values)
            cells = Configuration(policy, budget).cells()
            for query, row in enumerate(visible[0, 0].tolist()):
                yield *cells, layer, 0, query, "".join("1" if key else "0" for key in row)
