"""How good a choice of keys is, on the attention of an unpruned forward pass."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache import Full, Simulation, distance_to_ideal, early_share, simulate
from formerlab.cache.simulation import Seen
from formerlab.evaluation.pruning.configuration import Arm
from formerlab.models.decoder import DecoderModel
from formerlab.tasks.scoring import evaluating
from formerlab.tasks.window_losses import Stream, window_batches

Square = Float[Tensor, "batch heads time time"]
SquareMask = Bool[Tensor, "batch heads time time"]
Share = Float[Tensor, " batch"]


class MaskMeasure(NamedTuple):
    """One measure of the keys that an arm keeps in one window: mean over layers, heads and queries."""

    arm: Arm
    window: int
    metric: str
    value: float


def measures(arm: Arm, pruned: Square, full: Square, visible: SquareMask) -> dict[str, Share]:
    """Return the measures of one layer, given attention probabilities with and without pruning.

    Share of kept keys among the first 40 %, the first 10 % and the last 40 % of the positions seen so far, their mean
    position, and 1 - cosine between the attention rows and those of the best choice; an attention sink dominates the
    cosine, so once without position 0.
    """
    return {
        "early_share": early_share(visible, early=0.4),
        "early_share_10": early_share(visible, early=0.1),
        "mean_position": mean_position(visible),
        "recent_share": 1 - early_share(visible, early=0.6),
        "distance_to_ideal": distance_to_ideal(pruned, full, arm.budget),
        "distance_to_ideal_without_first": distance_to_ideal(pruned, full, arm.budget, skip=1),
    }


def mean_position(visible: SquareMask) -> Share:
    """Return the mean position of the kept keys as a share of those seen so far: 0.5 is even, 0 only the first.

    Averaged, as in `early_share`, over the queries in the second half that find any kept key, and over heads.
    """
    time = visible.shape[-1]
    position = torch.arange(time, device=visible.device)
    kept = visible & (position < position[:, None])
    count = kept.sum(-1)
    mean = (kept * (position + 0.5)).sum(-1) / count.clamp(min=1) / position.clamp(min=1)
    counted = (2 * position >= time) & (count > 0)
    share: Share = (mean.double() * counted).sum((1, 2)) / counted.sum((1, 2))
    return share


def mask_measures(
    model: DecoderModel, stream: Stream, context: int, windows: Sequence[int], arms: Sequence[Arm], *, batch: int = 16
) -> Iterator[MaskMeasure]:
    """Yield every measure of every arm and window.

    All arms choose from the attention logits of the same forward pass without pruning, so that the drift of pruned
    hidden states plays no part.
    """
    for indices, tokens in window_batches(stream, context, windows, batch):
        observer = _Observer(arms)
        with evaluating(model):
            model(tokens[:, :-1].to(model.embedding.device), attend=Simulation(Full(), 1.0, observe=observer))
        values = torch.stack([torch.stack(layers).mean(0) for layers in observer.layers.values()]).tolist()
        for (arm, metric), row in zip(observer.layers, values, strict=True):
            for window, value in zip(indices, row, strict=True):
                yield MaskMeasure(arm, window, metric, value)


class _Observer:
    """Lets every arm choose from each layer's attention, and collects the measures layer by layer."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.states: dict[Arm, dict[str, Tensor]] = {arm: {} for arm in arms}
        self.layers: dict[tuple[Arm, str], list[Share]] = defaultdict(list)

    def __call__(self, layer: int, seen: Seen) -> None:
        groups = seen.logits.shape[1] // seen.keys.shape[1]
        for arm, state in self.states.items():
            pruned, kept = simulate(
                arm.policy,
                seen.logits,
                arm.budget,
                groups=groups,
                keys=seen.keys,
                values=seen.values,
                state=state,
                layer=layer,
            )
            for metric, value in measures(arm, pruned, seen.probabilities, kept).items():
                self.layers[arm, metric].append(value)
