"""Compare one alpha per layer and key-value head with one alpha for all heads (Decay article, eq. 5)."""

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
    """An attention function that simulates Decay with one alpha per layer and key-value head."""

    def __init__(self, alphas: Sequence[Sequence[float]], budget: Budget, lengths: Int[Tensor, " batch"]) -> None:
        """`alphas` has shape (layers, kv_heads); `lengths` are the true lengths of the sequences."""
        self.alphas, self.budget, self.lengths = alphas, budget, lengths
        self._cache_sizes: list[Float[Tensor, " batch"]] = []

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return the attention output of a layer; heads with equal alphas are simulated together."""
        heads_per_kv_head = q.shape[1] // k.shape[1]
        out = q.new_empty(*q.shape[:3], v.shape[3])
        for alpha in sorted(set(self.alphas[layer])):
            members = [head for head, head_alpha in enumerate(self.alphas[layer]) if head_alpha == alpha]
            kv_heads = torch.tensor(members).to(q.device, non_blocking=True)
            within = torch.arange(heads_per_kv_head, device=q.device)
            heads = (kv_heads[:, None] * heads_per_kv_head + within).flatten()
            simulation = Simulation(Decay(alpha=alpha), self.budget, self.lengths)
            out[:, heads] = simulation(layer, q[:, heads], k[:, kv_heads], v[:, kv_heads])
            self._cache_sizes += [simulation.realised_budget] * len(members)
        return out

    @property
    def realised_budget(self) -> Float[Tensor, " batch"]:
        """Retained keys at the end as a fraction of the length, mean over layers and heads."""
        return torch.stack(self._cache_sizes).mean(0)


def head_distances(
    windows: Windows, alphas: Sequence[float], budget: Budget
) -> Float[Tensor, "alphas layers kv_heads"]:
    """Return the distance (1 - cosine) between attention probabilities of Decay and of the ideal policy.

    Both policies choose from the attention of an unpruned pass. Distances are means over windows, queries and the query
    heads of a key-value head.
    """
    distances: dict[tuple[float, int], list[Tensor]] = defaultdict(list)

    def observe(layer: int, attention: SimulatedLayer) -> None:
        kv_heads = attention.keys.shape[1]
        for alpha in alphas:
            pruned, _ = attention.simulate(Decay(alpha=alpha), budget)
            rows, full = (square.flatten(0, 1).unsqueeze(1) for square in (pruned, attention.probabilities))
            distance = distance_to_ideal(rows, ideal_attention(full, budget)).view(len(pruned), kv_heads, -1).mean(2)
            distances[alpha, layer].append(distance)

    for _ in windows.observe_layers(observe):
        pass
    layers = 1 + max(layer for _, layer in distances)
    means = [[torch.cat(distances[alpha, layer]).mean(0) for layer in range(layers)] for alpha in alphas]
    return torch.stack([torch.stack(row) for row in means]).cpu()


def calibrate(valid: Windows, test: Windows, alphas: Sequence[float], budget: Budget) -> tuple[list[Row], list[Row]]:
    """Choose alphas on the windows `valid`, evaluate them on `test`, and return the rows of two files.

    There are three choices. `per_head` has the alpha of smallest distance for each head. For all heads,
    `single_by_distance` has the alpha with the smallest mean distance, and `single_by_loss` has the alpha with the
    lowest loss. The losses of an alpha for all heads equal the losses of
    the same Decay policy in the sweep. The files are prune_alphas.csv and prune_calibrated.csv.
    """
    losses = [mean_loss(valid.losses(Configuration(Decay(alpha=alpha), budget).attend)) for alpha in alphas]
    by_head = head_distances(valid, alphas, budget)
    best_per_head = by_head.argmin(0)
    choices = {
        "per_head": best_per_head,
        "single_by_distance": torch.full_like(best_per_head, int(by_head.flatten(1).mean(1).argmin())),
        "single_by_loss": torch.full_like(best_per_head, losses.index(min(losses))),
    }
    chosen: list[Row] = []
    tested: list[Row] = []
    for name, index in choices.items():
        distances = by_head.gather(0, index.unsqueeze(0)).squeeze(0).tolist()
        by_layer = [[alphas[i] for i in row] for row in index.tolist()]
        for layer, heads in enumerate(zip(by_layer, distances, strict=True)):
            chosen += [(budget, name, layer, head, *pair) for head, pair in enumerate(zip(*heads, strict=True))]
        for loss in test.losses(partial(Headwise, by_layer, budget)):
            tested.append((budget, name, loss.realised_budget, *loss[:3]))
    return chosen, tested
