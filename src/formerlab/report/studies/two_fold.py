"""Two-fold cross-validation of alpha, per model (seed).

For each half of the questions, alpha is chosen on the other half: the alpha with the highest accuracy on the same task
(own), or with the highest mean accuracy over all tasks (common).
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

Grid = Float[ndarray, "alphas seeds examples"]
Choice = Int[ndarray, "seeds halves"]


def half_indices(names: Mapping[str, Sequence[str]]) -> dict[str, Int[ndarray, " examples"]]:
    """Return the half (0 or 1) of each example by task, from a hash of its id, which is equal on all machines."""
    hashes = {task: [hashlib.blake2b(example.encode()).digest() for example in ids] for task, ids in names.items()}
    return {task: np.array([digest[0] % 2 for digest in digests]) for task, digests in hashes.items()}


def choose_alphas(
    grids: Mapping[str, Grid], halves: Mapping[str, Int[ndarray, " examples"]], *, common: bool
) -> dict[str, Choice]:
    """Return the index of the alpha that is chosen for each half of the examples, by task: the alpha with the highest
    accuracy on the other half of the task or, if `common`, the highest mean accuracy over all tasks.
    """
    accuracies = {
        task: np.stack([grid[:, :, halves[task] != half].mean(axis=2) for half in (0, 1)], axis=-1)
        for task, grid in grids.items()
    }
    mean = np.mean([*accuracies.values()], axis=0)
    return {task: (mean if common else accuracy).argmax(axis=0) for task, accuracy in accuracies.items()}


def chosen_answers(grid: Grid, choice: Choice, halves: Int[ndarray, " examples"]) -> Float[ndarray, "seeds examples"]:
    """Return the scores of a task's examples with the alpha that is chosen for their half."""
    answers: Float[ndarray, "seeds examples"] = np.take_along_axis(grid, choice[None][:, :, halves], axis=0)[0]
    return answers


def split_halves(
    answers: Mapping[str, Float[ndarray, "seeds _ alphas"]], halves: Mapping[str, Int[ndarray, " _"]]
) -> tuple[Float[ndarray, "seeds _ alphas"], ...]:
    """Split the answers of every task into two consecutive entries, the first and the second half."""
    return tuple(of_task[:, halves[task] == half] for task, of_task in answers.items() for half in (0, 1))


def two_fold_means(
    halves: Sequence[Float[ndarray, "seeds examples alphas"]],
    counts: Sequence[Float[ndarray, "resamples examples"]],
    *,
    common: bool,
) -> Float[ndarray, "resamples seeds"]:
    """Return the mean accuracy over tasks. Alpha is chosen anew in every resample.

    `halves` is the result of `split_halves`, and `counts` has the number of times that a resample draws each question.
    """
    pairs = zip(counts, halves, strict=True)
    means = [np.einsum("re,sea->ras", n, answers) / n.sum(axis=1)[:, None, None] for n, answers in pairs]
    sizes, total = [answers.shape[1] for answers in halves], 0.0
    for index, mean in enumerate(means):
        other = index ^ 1  # the other half of the same task
        selection = np.mean(means[other % 2 :: 2], axis=0) if common else means[other]
        chosen = np.take_along_axis(mean, selection.argmax(axis=1)[:, None], axis=1)[:, 0]
        total = total + chosen * sizes[index] / (sizes[index] + sizes[other])
    return np.asarray(total / (len(halves) // 2))
