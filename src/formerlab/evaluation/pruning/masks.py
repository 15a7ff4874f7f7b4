"""Measurements on unpruned forward passes: the keys that policies retain (Decay article, Fig. 3), and how the scores of
important and unimportant tokens change with each query (Fig. 5).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache import H2O, Budget, Decay, Ideal, Local
from formerlab.cache.measures import distance_to_ideal, ideal_attention, retention_measures
from formerlab.cache.simulation import SimulatedLayer, Square
from formerlab.evaluation.measurement import Row
from formerlab.evaluation.pruning.windows import Configuration, Windows

FIGURE_3_POLICIES = (Ideal(), Local(), H2O(), Decay(alpha=0.2), Decay(alpha=0.8))
ALPHAS = (0.0, 0.2, 0.8, 1.0)
"""Decay factors of the tracked scores: 0 gives the attention of the last query, and 1 the mean over all queries."""
IMPORTANT_FRACTION = 0.1
"""Fraction of the tokens in the first half that are important: they get the most attention from the second half."""
RETAINED_FRACTION = 0.4
"""Fraction of the tokens up to a query that a cache retains by score; the other tokens are `missed`."""

Scores = Float[Tensor, "alphas sequences queries keys"]
Missed = Bool[Tensor, "alphas sequences queries keys"]
Importance = Float[Tensor, "sequences keys"]


def mask_measures(
    windows: Windows, configurations: Sequence[Configuration], documents: Sequence[int] = ()
) -> Iterator[Row]:
    """Yield the rows of prune_masks.csv: every metric of every configuration and window, with the window's document.

    All policies choose from the attention logits of the same unpruned forward pass, so pruning does not change hidden
    states. Values are means over layers, heads and queries.
    """
    layer_values: dict[tuple[Configuration, str], list[Float[Tensor, " batch"]]] = defaultdict(list)
    states: dict[Configuration, dict[str, Tensor]] = defaultdict(dict)

    def observe(layer: int, attention: SimulatedLayer) -> None:
        budgets = {configuration.budget for configuration in configurations}  # sort every row once per budget
        ideals = {budget: ideal_attention(attention.probabilities, budget).double() for budget in budgets}
        for configuration in configurations:
            pruned, visible = attention.simulate(*configuration, states[configuration], layer)
            pruned, ideal = pruned.double(), ideals[configuration.budget]
            skipped = {"distance_to_ideal": 0, "distance_to_ideal_without_first": 1}
            distances = {metric: distance_to_ideal(pruned, ideal, skip=skip) for metric, skip in skipped.items()}
            for metric, value in (retention_measures(visible) | distances).items():
                layer_values[configuration, metric].append(value)

    for indices in windows.observe_layers(observe) if configurations else ():
        means = torch.stack([torch.stack(values).mean(0) for values in layer_values.values()]).tolist()
        for (configuration, metric), row in zip(layer_values, means, strict=True):
            cells = configuration.cells()
            for window, value in zip(indices, row, strict=True):
                yield *cells, window, metric, value, documents[window] if documents else None
        layer_values.clear()
        states.clear()


def mask_dumps(windows: Windows, budgets: Sequence[Budget]) -> Iterator[Row]:
    """Yield the rows of prune_mask_dumps.csv: the keys that queries see in head 0 of the middle layer, first window."""
    layers: list[SimulatedLayer] = []
    for _ in windows.observe_layers(lambda _, attention: layers.append(attention)):
        middle = len(layers) // 2
        for budget in budgets:
            for policy in FIGURE_3_POLICIES:
                _, visible = layers[middle].simulate(policy, budget)
                for query, row in enumerate(visible[0, 0].tolist()):
                    seen_keys = "".join("1" if key else "0" for key in row)
                    yield *Configuration(policy, budget).cells(), middle, 0, query, seen_keys


def track_scores(attention: Square) -> tuple[Scores, Missed, Importance]:
    """Track the scores S <- alpha S + p of the tokens in the first half, after every query in the second half.

    `attention` (batch, heads, time, time) has the probabilities p of an unpruned pass. Returns three tensors on the
    CPU, because they are collected for all layers and windows; the axis `sequences` has one entry per sequence and
    head:
    - the scores S, divided by the sum of their weights, in float32: an exponentially weighted mean of attention;
    - whether a cache with RETAINED_FRACTION of the tokens so far, ranked by S before the division, would have evicted
      the token;
    - the mean attention of each token from the second half.
    """
    rows = attention.flatten(0, 1).double()
    time = rows.shape[-1]
    half, positions = time // 2, torch.arange(time, device=rows.device)
    alphas = torch.tensor(ALPHAS, dtype=rows.dtype)[:, None, None].to(rows.device, non_blocking=True)
    total, weight, scores, missed = rows.new_zeros(()), rows.new_zeros(()), [], []
    for query in range(time):
        total = alphas * total + rows[:, query]
        weight = alphas * weight + (positions <= query)
        if query >= half:
            so_far = total[..., : query + 1]
            rank = query + 1 - max(1, round(RETAINED_FRACTION * (query + 1)))
            missed.append(so_far[..., :half] <= so_far.kthvalue(rank, dim=-1, keepdim=True).values)
            scores.append(total[..., :half] / weight[..., :half])
    means = torch.stack(scores, 2).float()
    return means.cpu(), torch.stack(missed, 2).cpu(), rows[:, half:, :half].mean(1).cpu()


def score_trajectories(windows: Windows) -> Iterator[Row]:
    """Yield the rows of prune_score_trajectories.csv, one per group, alpha and query of the second half.

    The groups are the important and the unimportant tokens of all windows, layers and heads, without position 0, which
    is an attention sink. A row contains the mean and the 10 % and 90 % quantiles of the scores, and the fraction of
    missed tokens.
    """
    layers: list[tuple[Scores, Missed, Importance]] = []
    for _ in windows.observe_layers(lambda _, simulated: layers.append(track_scores(simulated.probabilities))):
        pass
    if not layers:
        return
    tracked, missing, importances = zip(*layers, strict=True)
    importance = torch.cat(importances)[:, 1:]
    count, half = max(1, round(IMPORTANT_FRACTION * importance.shape[1])), importances[0].shape[1]
    highest = importance.topk(count, dim=1).indices
    important = torch.zeros_like(importance, dtype=torch.bool).scatter_(1, highest, value=True)
    for index, alpha in enumerate(ALPHAS):
        scores, missed = (torch.cat([values[index] for values in each])[..., 1:] for each in (tracked, missing))
        for group, members in (("important", important), ("unimportant", ~important)):
            for step in range(scores.shape[1]):
                values = scores[:, step][members]
                quantiles = np.quantile(values.numpy(), [0.1, 0.9])  # torch.quantile takes at most 2^24 values
                fraction = missed[:, step][members].double().mean().item()
                yield group, alpha, half + step, values.double().mean().item(), *quantiles.tolist(), fraction
