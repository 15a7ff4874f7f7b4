"""Which keys policies choose on the attention of an unpruned forward pass: measured, and row by row (Fig. 3)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from formerlab.cache import H2O, Budget, Decay, Ideal, Local
from formerlab.cache.measures import distance_to_ideal, ideal_attention, kept_measures
from formerlab.cache.simulation import Seen
from formerlab.evaluation.kept import Row
from formerlab.evaluation.pruning.windows import Configuration, Windows

Share = Float[Tensor, " batch"]
DUMPED = (Ideal(), Local(), H2O(), Decay(alpha=0.2), Decay(alpha=0.8))
"""The policies of Fig. 3 of the Decay article."""


def mask_measures(windows: Windows, configurations: Sequence[Configuration]) -> Iterator[Row]:
    """Yield the cells of prune_masks.csv: every measure of every configuration and window.

    All choose from the attention logits of the same forward pass without pruning, so that the drift of pruned hidden
    states plays no part. Values are means over layers, heads and queries.
    """
    layers: dict[tuple[Configuration, str], list[Share]] = defaultdict(list)
    states: dict[Configuration, dict[str, Tensor]] = defaultdict(dict)

    def observe(layer: int, seen: Seen) -> None:
        budgets = {configuration.budget for configuration in configurations}  # each ideal sorts every row
        ideals = {budget: ideal_attention(seen.probabilities, budget).double() for budget in budgets}
        for configuration in configurations:
            pruned, kept = seen.under(*configuration, states[configuration], layer)
            pruned, ideal = pruned.double(), ideals[configuration.budget]
            far = {"distance_to_ideal": 0, "distance_to_ideal_without_first": 1}
            distances = {metric: distance_to_ideal(pruned, ideal, skip=skip) for metric, skip in far.items()}
            for metric, value in (kept_measures(kept) | distances).items():
                layers[configuration, metric].append(value)

    for numbers in windows.observed(observe):
        values = torch.stack([torch.stack(each).mean(0) for each in layers.values()]).tolist()
        for (configuration, metric), row in zip(layers, values, strict=True):
            for window, value in zip(numbers, row, strict=True):
                yield *configuration.cells(), window, metric, value
        layers.clear()
        states.clear()


def mask_dumps(windows: Windows, budgets: Sequence[Budget]) -> Iterator[Row]:
    """Yield the cells of prune_mask_dumps.csv: of the first window, what every query sees under each policy of Fig. 3.

    All policies choose from the attention of the same unpruned pass, in head 0 of the middle layer. `kept` has a 1 for
    every key that the query sees.
    """
    layers: list[Seen] = []
    for _ in windows.observed(lambda _, seen: layers.append(seen)):
        middle = len(layers) // 2
        for budget in budgets:
            for policy in DUMPED:
                _, visible = layers[middle].under(policy, budget)
                for query, row in enumerate(visible[0, 0].tolist()):
                    kept = "".join("1" if key else "0" for key in row)
                    yield *Configuration(policy, budget).cells(), middle, 0, query, kept
