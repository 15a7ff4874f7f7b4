"""Alpha chosen on one half of the questions and judged on the other, for each task or for all tasks at once.

A choice is the alpha of the best accuracy on the other half: of the same task (own), or of all tasks in the mean
(common). Every model (seed) chooses for itself.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

Grid = Float[ndarray, "alphas seeds examples"]
Choice = Int[ndarray, "seeds halves"]


def half_of(example: str) -> int:
    """Return 0 or 1, by a hash of an example's id: the same halves on every machine, for every run."""
    return hashlib.blake2b(example.encode()).digest()[0] % 2


def choices(
    grids: Mapping[str, Grid], halves: Mapping[str, Int[ndarray, " examples"]], *, common: bool
) -> dict[str, Choice]:
    """Return by task the index of the alpha that is chosen for each half of its examples."""
    shown = {
        task: np.stack([grid[:, :, halves[task] != half].mean(axis=2) for half in (0, 1)], axis=-1)
        for task, grid in grids.items()
    }
    of_all = np.mean([*shown.values()], axis=0)
    return {task: (of_all if common else mine).argmax(axis=0) for task, mine in shown.items()}


def answers_of(grid: Grid, choice: Choice, halves: Int[ndarray, " examples"]) -> Float[ndarray, "seeds examples"]:
    """Return the answers of a task, each under the alpha that is chosen for its half."""
    answers: Float[ndarray, "seeds examples"] = np.take_along_axis(grid, choice[None][:, :, halves], axis=0)[0]
    return answers


def two_fold_means(
    halves: Mapping[str, tuple[Grid, Grid]],
    counts: Mapping[str, Sequence[Float[ndarray, "resamples examples"]]],
    *,
    common: bool,
) -> Float[ndarray, "resamples seeds"]:
    """Return the mean accuracy over tasks, with the choice made anew in every resample.

    `halves` are the answers of each half of a task, `counts` how often each of its questions is drawn.
    """
    means: dict[str, list[Float[ndarray, "resamples alphas seeds"]]] = {}
    for task, pair in halves.items():
        drawn = zip(counts[task], pair, strict=True)
        means[task] = [np.einsum("re,ase->ras", n, grid) / n.sum(axis=1)[:, None, None] for n, grid in drawn]
    total = 0.0
    for half in (0, 1):
        of_all = np.mean([mean[1 - half] for mean in means.values()], axis=0)
        for task, pair in halves.items():
            best = (of_all if common else means[task][1 - half]).argmax(axis=1)
            chosen = np.take_along_axis(means[task][half], best[:, None], axis=1)[:, 0]
            weight = pair[half].shape[2] / sum(other.shape[2] for other in pair)
            total = total + weight * chosen / len(halves)
    return np.asarray(total)
