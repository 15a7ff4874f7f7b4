"""Alpha chosen on one half of the questions and judged on the other, for each task or for all tasks at once."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

Grid = Float[ndarray, "alphas seeds examples"]
Halves = Int[ndarray, "examples"]
Answers = Float[ndarray, "seeds examples"]


class Selected(NamedTuple):
    """The answers of one task, each under the alpha that the other half of the questions chose."""

    own: Answers
    """Under the alpha of the best accuracy on the other half of the same task."""
    common: Answers
    """Under the alpha of the best mean over the other halves of all tasks."""
    own_places: list[int]
    """Which alphas were chosen, by their place in the grid."""
    common_places: list[int]


def half_of(example: str) -> int:
    """Return 0 or 1, by a hash of an example's id: the same halves on every machine, for every run."""
    return hashlib.blake2b(example.encode()).digest()[0] % 2


def two_fold_selection(grids: Mapping[str, Grid], halves: Mapping[str, Halves]) -> dict[str, Selected]:
    """Return by task its answers under the chosen alphas; every model (seed) chooses for itself.

    Tasks of which all examples fall into one half are left out.
    """
    grids = {task: grid for task, grid in grids.items() if len(set(halves[task])) == 2}
    seeds = min((grid.shape[1] for grid in grids.values()), default=0)
    result = {
        task: Selected(np.zeros((seeds, grid.shape[2])), np.zeros((seeds, grid.shape[2])), [], [])
        for task, grid in grids.items()
    }
    for seed in range(seeds):
        for half in (0, 1):
            means = {task: grid[:, seed, halves[task] != half].mean(axis=1) for task, grid in grids.items()}
            common = int(np.mean(list(means.values()), axis=0).argmax())
            for task, grid in grids.items():
                own, here = int(means[task].argmax()), halves[task] == half
                result[task].own[seed, here] = grid[own, seed, here]
                result[task].common[seed, here] = grid[common, seed, here]
                result[task].own_places.append(own)
                result[task].common_places.append(common)
    return result
