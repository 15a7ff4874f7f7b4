"""Alpha chosen on one half of the questions and judged on the other, for each task or for all tasks at once."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

Grid = Float[ndarray, "alphas seeds examples"]
Halves = Int[ndarray, "examples"]
Answers = Float[ndarray, "seeds examples"]


class Selected(NamedTuple):
    """The answers of one task, each under the alpha that the other half of the questions chose.

    `own` is the alpha of the best accuracy on the other half of the same task, `common` that of the best mean over the
    other halves of all tasks; `..._places` number the alphas that were chosen.
    """

    own: Answers
    common: Answers
    own_places: list[int]
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


def two_fold_means(
    halves: Mapping[str, tuple[Grid, Grid]],
    counts: Mapping[str, Sequence[Float[ndarray, "resamples examples"]]],
    *,
    common: bool,
) -> Float[ndarray, "resamples seeds"]:
    """Return the mean accuracy over tasks of `two_fold_selection`, with the choice made anew in every resample.

    `halves` are the answers of each half of a task, `counts` how often each of its questions is drawn.
    """
    means = {
        task: [np.einsum("re,ase->ras", drawn, grid) / drawn.sum(axis=1)[:, None, None] for drawn, grid in both]
        for task, both in ((task, list(zip(counts[task], pair, strict=True))) for task, pair in halves.items())
    }
    total = 0.0
    for task, pair in halves.items():
        weights = [half.shape[2] / sum(other.shape[2] for other in pair) for half in pair]
        for half in (0, 1):
            shown = np.mean([mean[1 - half] for mean in means.values()], axis=0) if common else means[task][1 - half]
            chosen = np.take_along_axis(means[task][half], shown.argmax(axis=1)[:, None], axis=1)[:, 0]
            total = total + weights[half] * chosen / len(halves)
    return np.asarray(total)
