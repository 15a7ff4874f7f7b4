"""What unpruned forward passes show: the keys that policies choose, measured and row by row, and how attention to
important and to unimportant tokens moves from query to query (Decay article, Fig. 3 and 5).

An important token may be ignored by one query and wanted again by the next. A score that remembers a little bridges
such dips; one that remembers everything also keeps what was important long ago.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache import H2O, Budget, Decay, Ideal, Local
from formerlab.cache.measures import distance_to_ideal, ideal_attention, kept_measures
from formerlab.cache.simulation import SimulatedLayer, Square
from formerlab.evaluation.measurement import Row
from formerlab.evaluation.pruning.windows import Configuration, Windows

Fraction = Float[Tensor, " batch"]
DUMPED = (Ideal(), Local(), H2O(), Decay(alpha=0.2), Decay(alpha=0.8))
"""The policies of Fig. 3 of the Decay article."""
ALPHAS = (0.0, 0.2, 0.8, 1.0)
"""Scores that are followed: 0 is attention itself, 1 the plain sum."""
IMPORTANT = 0.1
"""Share of the tokens of the first half that count as important: those of most attention from the second half."""
KEPT = 0.4
"""Share of the tokens so far that a cache would keep by its score, for `missed`."""

Scores = Float[Tensor, "alphas sequences queries keys"]
Missed = Bool[Tensor, "alphas sequences queries keys"]
Importance = Float[Tensor, "sequences keys"]


def mask_measures(
    windows: Windows, configurations: Sequence[Configuration], documents: Sequence[int] = ()
) -> Iterator[Row]:
    """Yield the cells of prune_masks.csv: every measure of every configuration and window, and its document.

    All choose from the attention logits of the same forward pass without pruning, so that the drift of pruned hidden
    states plays no part. Values are means over layers, heads and queries.
    """
    layers: dict[tuple[Configuration, str], list[Fraction]] = defaultdict(list)
    states: dict[Configuration, dict[str, Tensor]] = defaultdict(dict)

    def observe(layer: int, seen: SimulatedLayer) -> None:
        budgets = {configuration.budget for configuration in configurations}  # each ideal sorts every row
        ideals = {budget: ideal_attention(seen.probabilities, budget).double() for budget in budgets}
        for configuration in configurations:
            pruned, kept = seen.under(*configuration, states[configuration], layer)
            pruned, ideal = pruned.double(), ideals[configuration.budget]
            far = {"distance_to_ideal": 0, "distance_to_ideal_without_first": 1}
            distances = {metric: distance_to_ideal(pruned, ideal, skip=skip) for metric, skip in far.items()}
            for metric, value in (kept_measures(kept) | distances).items():
                layers[configuration, metric].append(value)

    for numbers in windows.observed(observe) if configurations else ():
        values = torch.stack([torch.stack(each).mean(0) for each in layers.values()]).tolist()
        for (configuration, metric), row in zip(layers, values, strict=True):
            for window, value in zip(numbers, row, strict=True):
                yield *configuration.cells(), window, metric, value, documents[window] if documents else None
        layers.clear()
        states.clear()


def mask_dumps(windows: Windows, budgets: Sequence[Budget]) -> Iterator[Row]:
    """Yield the cells of prune_mask_dumps.csv: of the first window, what every query sees under each policy of Fig. 3,
    which all choose from the attention of the same unpruned pass, in head 0 of the middle layer.
    """
    layers: list[SimulatedLayer] = []
    for _ in windows.observed(lambda _, seen: layers.append(seen)):
        middle = len(layers) // 2
        for budget in budgets:
            for policy in DUMPED:
                _, visible = layers[middle].under(policy, budget)
                for query, row in enumerate(visible[0, 0].tolist()):
                    kept = "".join("1" if key else "0" for key in row)
                    yield *Configuration(policy, budget).cells(), middle, 0, query, kept


def follow(attention: Square) -> tuple[Scores, Missed, Importance]:
    """Follow the scores S <- alpha S + p of all tokens of the first half through an unpruned pass.

    Returned are, after every query of the second half, the scores with the sum of the weights divided out (a mean of
    attention whose memory alpha sets), and whether a score is not among the best of all tokens so far; and each token's
    mean attention from the second half. Sequences are those of the batch times the heads. In single precision, off the
    GPU: all layers of all windows are held until the end.
    """
    rows = attention.flatten(0, 1).double()
    time = rows.shape[-1]
    half, place = time // 2, torch.arange(time, device=rows.device)
    alphas = torch.tensor(ALPHAS, dtype=rows.dtype)[:, None, None].to(rows.device, non_blocking=True)
    total, weight, kept, missed = rows.new_zeros(()), rows.new_zeros(()), [], []
    for query in range(time):
        total = alphas * total + rows[:, query]
        weight = alphas * weight + (place <= query)
        if query >= half:
            seen = total[..., : query + 1]
            least = seen.kthvalue(query + 1 - max(1, round(KEPT * (query + 1))), dim=-1, keepdim=True).values
            missed.append(seen[..., :half] <= least)
            kept.append(total[..., :half] / weight[..., :half])
    scores = torch.stack(kept, 2).float()
    return scores.cpu(), torch.stack(missed, 2).cpu(), rows[:, half:, :half].mean(1).cpu()


def score_trajectories(windows: Windows) -> Iterator[Row]:
    """Yield the cells of prune_score_trajectories.csv: mean, 10 % and 90 % quantile of both groups at every query
    of the second half.

    Over all windows, layers and heads. Position 0, whose attention is that of a sink, belongs to neither group.
    """
    found: list[tuple[Scores, Missed, Importance]] = []
    for _ in windows.observed(lambda _, seen: found.append(follow(seen.probabilities))):
        pass
    if not found:
        return
    followed, missing, importances = zip(*found, strict=True)
    importance = torch.cat(importances)[:, 1:]
    count, half = max(1, round(IMPORTANT * importance.shape[1])), importances[0].shape[1]
    best = torch.zeros_like(importance, dtype=torch.bool).scatter_(1, importance.topk(count, dim=1).indices, value=True)
    for index, alpha in enumerate(ALPHAS):
        scores, missed = (torch.cat([one[index] for one in each])[..., 1:] for each in (followed, missing))
        for group, members in (("important", best), ("unimportant", ~best)):
            for step in range(scores.shape[1]):
                values = scores[:, step][members]
                tenths = np.quantile(values.numpy(), [0.1, 0.9]).tolist()  # torch.quantile takes at most 2^24 values
                share = missed[:, step][members].double().mean().item()
                yield group, alpha, half + step, values.double().mean().item(), *tenths, share
