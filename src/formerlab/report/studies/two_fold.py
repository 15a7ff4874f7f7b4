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


def halves_of(names: Mapping[str, Sequence[str]]) -> dict[str, Int[ndarray, " examples"]]:
    """Return by task the half of each of its examples."""
    return {task: np.array([half_of(example) for example in examples]) for task, examples in names.items()}


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


def halved(
    answers: Mapping[str, Float[ndarray, "seeds _ alphas"]], halves: Mapping[str, Int[ndarray, " _"]]
) -> tuple[Float[ndarray, "seeds _ alphas"], ...]:
    """Return the answers of the first and the second half of every task, one behind the other."""
    return tuple(mine[:, halves[task] == half] for task, mine in answers.items() for half in (0, 1))


def two_fold_means(
    halves: Sequence[Float[ndarray, "seeds examples alphas"]],
    counts: Sequence[Float[ndarray, "resamples examples"]],
    *,
    common: bool,
) -> Float[ndarray, "resamples seeds"]:
    """Return the mean accuracy over tasks, with the choice made anew in every resample.

    `halves` are the answers of the two halves of every task, `counts` how often each of their questions is drawn.
    """
    pairs = zip(counts, halves, strict=True)
    means = [np.einsum("re,sea->ras", n, answers) / n.sum(axis=1)[:, None, None] for n, answers in pairs]
    sizes, total = [answers.shape[1] for answers in halves], 0.0
    for half, mean in enumerate(means):
        other = half ^ 1  # of the same task
        shown = np.mean(means[other % 2 :: 2], axis=0) if common else means[other]
        chosen = np.take_along_axis(mean, shown.argmax(axis=1)[:, None], axis=1)[:, 0]
        total = total + chosen * sizes[half] / (sizes[half] + sizes[other])
    return np.asarray(total / (len(halves) // 2))
