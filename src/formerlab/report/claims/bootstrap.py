"""Differences over the same examples: a point estimate per seed, and replicates in which the examples are resampled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from formerlab.report.claims.quantity import MissingRowsError, Paired
from formerlab.statistics import resampled

Reduce = Callable[[Float[np.ndarray, "*shape statistics"], int], Float[np.ndarray, "*shape"]]
"""From sums of statistics over so many examples to the metric."""


def mean_of_examples(sums: Float[np.ndarray, "*shape statistics"], examples: int) -> Float[np.ndarray, "*shape"]:
    """Return the mean, for metrics that are one number per example."""
    return sums[..., 0] / examples


@dataclass(frozen=True)
class Examples:
    """Statistics of the same examples for several seeds, in one group per task."""

    groups: tuple[Float[np.ndarray, "seeds examples statistics"], ...]
    """One array per task; the metric is the unweighted mean over the tasks."""
    seeds: tuple[int, ...]
    names: Mapping[str, tuple[str, ...]]
    """By task what its examples are called: two arms answered the same ones, or are not compared."""
    reduce: Reduce = mean_of_examples
    """Sums of statistics to the metric; BLEU, say, is a function of summed n-gram counts."""

    def of(self, seeds: tuple[int, ...]) -> "Examples":
        """Return the examples of some of the seeds."""
        places = [self.seeds.index(seed) for seed in seeds]
        return replace(self, groups=tuple(group[places] for group in self.groups), seeds=seeds)


def paired_difference(a: Examples, b: Examples, resamples: int) -> Paired:
    """Return metric(a) - metric(b) over the seeds that both have, averaged over tasks without weights.

    Corpus metrics are computed again on every resample. The resamples depend on the numbers of examples alone, so all
    comparisons of a claim share them. Raises MissingRowsError where the examples are not the same.
    """
    if a.names != b.names:
        raise MissingRowsError("the arms have rows of different examples")
    if not (seeds := tuple(seed for seed in a.seeds if seed in b.seeds)):
        raise MissingRowsError("the arms have no seed in common")
    of_seeds, replicates = np.zeros(len(seeds)), np.zeros(resamples)
    for arm, sign in ((a.of(seeds), 1 / len(a.groups)), (b.of(seeds), -1 / len(a.groups))):
        for index, group in enumerate(arm.groups):
            of_seeds += sign * arm.reduce(group.sum(axis=1), group.shape[1])
            replicates += sign * _replicates(group, arm.reduce, index, resamples)
    examples = sum(map(len, a.names.values()))
    return Paired(dict(zip(seeds, of_seeds.tolist(), strict=True)), replicates, examples)


def _replicates(
    group: Float[np.ndarray, "seeds examples statistics"], reduce: Reduce, index: int, resamples: int
) -> Float[np.ndarray, " resamples"]:
    """Return the metric of a task, averaged over seeds, on resamples of its examples."""
    found = np.empty(resamples)
    for part, drawn in resampled(group.shape[1], resamples, index):
        found[part] = reduce(np.einsum("re,sek->rsk", drawn, group, optimize=True), group.shape[1]).mean(axis=1)
    return found
