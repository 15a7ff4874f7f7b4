"""Replicates of a statistic over examples: seeds are resampled first, then examples; resamples are shared."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from formerlab.claims.quantity import Replicates
from formerlab.statistics import resample_counts

Reduce = Callable[[Float[np.ndarray, "*shape statistics"]], Float[np.ndarray, "*shape"]]


def first_statistic(means: Float[np.ndarray, "*shape statistics"]) -> Float[np.ndarray, "*shape"]:
    """Return the mean itself, for metrics that are one number per example."""
    return means[..., 0]


@dataclass(frozen=True)
class Examples:
    """Statistics of the same examples for several seeds, in one group per task."""

    groups: tuple[Float[np.ndarray, "seeds examples statistics"], ...]
    """One array per task; the metric is the unweighted mean over the tasks."""
    reduce: Reduce = first_statistic
    """Mean statistics to the metric; BLEU, say, is a function of mean n-gram counts."""

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.groups[0])

    @property
    def examples(self) -> int:
        """Number of examples of all tasks."""
        return sum(group.shape[1] for group in self.groups)


def paired_replicates(a: Examples, b: Examples, resamples: int) -> Replicates:
    """Return replicates of metric(a) - metric(b), averaged over tasks without weights.

    Both have the same tasks, seeds and examples. The resamples depend on the counts alone, so all comparisons of a
    claim share them; all tasks of a replicate share its draw of seeds.
    """
    drawn_seeds = resample_counts(np.random.default_rng(11), resamples, a.seeds) / a.seeds
    differences = np.zeros(resamples)
    for index, (left, right) in enumerate(zip(a.groups, b.groups, strict=True)):
        examples = left.shape[1]
        random = np.random.default_rng([7, index])
        chunk = max(1, 2_000_000 // max(1, examples))
        for start in range(0, resamples, chunk):
            part = slice(start, min(start + chunk, resamples))
            drawn = resample_counts(random, part.stop - start, examples) / examples
            for group, reduce, sign in ((left, a.reduce, 1.0), (right, b.reduce, -1.0)):
                means = np.einsum("re,sek->rsk", drawn, group, optimize=True)
                differences[part] += sign * (reduce(means) * drawn_seeds[part]).sum(axis=1)
    return Replicates(differences / len(a.groups), a.seeds, a.examples)
