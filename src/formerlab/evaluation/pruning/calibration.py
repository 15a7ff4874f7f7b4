"""One alpha per layer and head, chosen on calibration windows, compared with a single forgetting factor.

A choice is made on validation windows and judged on test windows. Head by head, alpha is the one whose attention rows
come closest to the ideal ones (mean 1 - cosine, on the attention of an unpruned pass); it is compared with one alpha
for all, chosen on the same windows: by the same measure, and by the loss itself, which is the strongest single choice.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from formerlab.cache import Budget, Decay, Simulation, distance_to_ideal, ideal_attention
from formerlab.cache.simulation import SimulatedLayer
from formerlab.evaluation.measurement import Row
from formerlab.evaluation.pruning.windows import Configuration, Windows
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.tasks.window_losses import mean_loss


class Headwise:
    """An `attend` that simulates Decay with an alpha of its own in every key head (Decay article, eq. 5, per head)."""

    def __init__(self, alphas: Sequence[Sequence[float]], budget: Budget, lengths: Int[Tensor, " batch"]) -> None:
        """`alphas` are those of each layer and key head."""
        self.alphas, self.budget, self.lengths = alphas, budget, lengths
        self._realised: list[Float[Tensor, " batch"]] = []

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return the attention of a layer; heads of equal alpha are simulated together."""
        groups = q.shape[1] // k.shape[1]
        out = q.new_empty(*q.shape[:3], v.shape[3])
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


def head_distances(
    windows: Windows, alphas: Sequence[float], budget: Budget
) -> Float[Tensor, "alphas layers key_heads"]:
    """Return how far each head's attention under each alpha is from the ideal, mean over windows and queries."""
    collected: dict[tuple[float, int], list[Tensor]] = defaultdict(list)

    def observe(layer: int, seen: SimulatedLayer) -> None:
        key_heads = seen.keys.shape[1]
        for alpha in alphas:
            pruned, _ = seen.under(Decay(alpha=alpha), budget)
            own, full = (square.flatten(0, 1).unsqueeze(1) for square in (pruned, seen.probabilities))
            distance = distance_to_ideal(own, ideal_attention(full, budget)).view(len(pruned), key_heads, -1).mean(2)
            collected[alpha, layer].append(distance)

    for _ in windows.observed(observe):
        pass
    layers = 1 + max(layer for _, layer in collected)
    means = [[torch.cat(collected[alpha, layer]).mean(0) for layer in range(layers)] for alpha in alphas]
    return torch.stack([torch.stack(row) for row in means]).cpu()


def calibrated(valid: Windows, test: Windows, alphas: Sequence[float], budget: Budget) -> tuple[list[Row], list[Row]]:
    """Choose on the windows `valid`; return the rows of prune_alphas.csv, and those of prune_calibrated.csv on `test`.

    Three choices: the alpha of least distance in each head, and the single alphas of least distance and of least loss.
    A single alpha is simulated like any other policy, so its losses are those of the sweep.
    """
    losses = [mean_loss(valid.losses(Configuration(Decay(alpha=alpha), budget).attend)) for alpha in alphas]
    by_head = head_distances(valid, alphas, budget)
    own = by_head.argmin(0)
    choices = {
        "per_head": own,
        "single_by_distance": torch.full_like(own, int(by_head.flatten(1).mean(1).argmin())),
        "single_by_loss": torch.full_like(own, losses.index(min(losses))),
    }
    chosen: list[Row] = []
    tested: list[Row] = []
    for name, index in choices.items():
        distances = by_head.gather(0, index.unsqueeze(0)).squeeze(0).tolist()
        by_layer = [[alphas[place] for place in row] for row in index.tolist()]
        for layer, (row, far) in enumerate(zip(by_layer, distances, strict=True)):
            chosen += [(budget, name, layer, head, *pair) for head, pair in enumerate(zip(row, far, strict=True))]
        for loss in test.losses(partial(Headwise, by_layer, budget)):
            tested.append((budget, name, loss.realised_budget, *loss[:3]))
    return chosen, tested
