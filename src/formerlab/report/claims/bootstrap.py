"""Examples of an arm as a mean with replicates in which the examples are resampled, in batches.

The resamples depend on the numbers of examples alone, so all arms of a claim share them and differences stay paired.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from pandas import DataFrame

from formerlab.report.claims.quantity import MIN_UNITS, MissingRowsError, Paired
from formerlab.report.two_fold import Grid, two_fold_means
from formerlab.statistics import resampled

BATCHES = 20
"""Batches of resamples, each with a random seed of its own (monte_carlo_batches)."""

Reduce = Callable[[Float[np.ndarray, "*shape statistics"]], Float[np.ndarray, "*shape"]]
"""From sums of statistics over examples to the metric."""


def ratio_of_sums(sums: Float[np.ndarray, "*shape statistics"]) -> Float[np.ndarray, "*shape"]:
    """Return the mean, for statistics that are a sum and a count."""
    return np.asarray(sums[..., 0] / sums[..., 1])


@dataclass(frozen=True)
class Examples:
    """Statistics of the same examples for several seeds, in one group per task."""

    groups: tuple[Float[np.ndarray, "seeds examples statistics"], ...]
    seeds: tuple[int, ...]
    names: Mapping[str, tuple[str, ...]]
    """By task what its examples are called: two arms answered the same ones, or are not compared."""
    reduce: Reduce = ratio_of_sums
    """BLEU, say, is a function of summed n-gram counts, and computed again on every resample."""

    def of(self, seeds: tuple[int, ...]) -> "Examples":
        """Return the examples of some of the seeds."""
        indices = [self.seeds.index(seed) for seed in seeds]
        return replace(self, groups=tuple(group[indices] for group in self.groups), seeds=seeds)

    def estimate(self, resamples: int) -> Paired:
        """Return the mean over the examples, averaged over tasks without weights, with its replicates."""
        of_seeds = np.mean([self.reduce(group.sum(axis=1)) for group in self.groups], axis=0)
        numbered = list(enumerate(self.groups))
        replicates = [
            np.mean([self._resampled(group, 1000 * task + batch, resamples) for task, group in numbered], axis=0)
            for batch in range(BATCHES)
        ]
        single = tuple(self.reduce(group).mean(axis=0) for group in self.groups) if self.reduce is ratio_of_sums else ()
        examples = sum(group.shape[1] for group in self.groups)
        return Paired(dict(zip(self.seeds, of_seeds.tolist(), strict=True)), np.array(replicates), examples, single)

    def _resampled(
        self, group: Float[np.ndarray, "seeds examples statistics"], random_seed: int, resamples: int
    ) -> Float[np.ndarray, " resamples"]:
        found = np.empty(resamples // BATCHES)
        for part, drawn in resampled(group.shape[1], len(found), random_seed):
            found[part] = self.reduce(np.einsum("re,sek->rsk", drawn, group, optimize=True)).mean(axis=1)
        return found


def grouped(rows: DataFrame, example: str, run: str) -> Examples:
    """Return an array per task, seeds by examples (documents, where there are enough) by sum and count, in order."""
    example = "document" if "document" in rows and rows["document"].nunique() >= MIN_UNITS else example
    groups, names, seeds = [], {}, set()
    for task, block in sorted(rows.groupby("task"), key=lambda pair: str(pair[0])):
        sums = DataFrame(block.groupby(["seed", example])["value"].agg(["sum", "count"]).unstack())
        if sums.isna().any(axis=None):
            raise MissingRowsError(f"the seeds of {run} answered different examples")
        groups.append(np.stack([sums["sum"].to_numpy(float), sums["count"].to_numpy(float)], axis=-1))
        names[str(task)] = tuple(map(str, sums["sum"].columns))
        seeds.add(tuple(map(int, sums.index)))
    if len(seeds) != 1:
        raise MissingRowsError(
            f"the seeds of {run} answered different tasks" if seeds else f"run {run} has no such rows"
        )
    return Examples(tuple(groups), seeds.pop(), names)


@dataclass(frozen=True)
class Chosen:
    """Answers under several alphas, of which the other half of the questions chooses, in every resample anew."""

    halves: Mapping[str, tuple[Grid, Grid]]
    seeds: tuple[int, ...]
    names: Mapping[str, tuple[str, ...]]
    common: bool

    def of(self, seeds: tuple[int, ...]) -> "Chosen":
        """Return the examples of some of the seeds."""
        at = [self.seeds.index(seed) for seed in seeds]
        halves = {task: (one[:, at], other[:, at]) for task, (one, other) in self.halves.items()}
        return replace(self, halves=halves, seeds=seeds)

    def estimate(self, resamples: int) -> Paired:
        """Return the mean accuracy, averaged over tasks without weights, with its replicates."""
        sizes = {task: [half.shape[2] for half in halves] for task, halves in self.halves.items()}
        once = {task: [np.ones((1, size)) for size in pair] for task, pair in sizes.items()}
        (of_seeds,) = two_fold_means(self.halves, once, common=self.common)
        replicates = [self._batch(sizes, batch, resamples // BATCHES).mean(axis=1) for batch in range(BATCHES)]
        found = dict(zip(self.seeds, of_seeds.tolist(), strict=True))
        return Paired(found, np.array(replicates), sum(map(sum, sizes.values())), percentiles=False)

    def _batch(
        self, sizes: Mapping[str, list[int]], batch: int, resamples: int
    ) -> Float[np.ndarray, "resamples seeds"]:
        drawn = {
            task: [
                np.concatenate([part for _, part in resampled(size, resamples, (2 * index + half) * 1000 + batch)])
                for half, size in enumerate(pair)
            ]
            for index, (task, pair) in enumerate(sizes.items())
        }
        return two_fold_means(self.halves, drawn, common=self.common)


Sample = Examples | Chosen
"""What a paired comparison takes of an arm."""
