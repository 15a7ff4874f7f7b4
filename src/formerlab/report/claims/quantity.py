"""Quantities with an uncertainty: linear combinations of run metrics, paired means over examples, agreement of seeds.

protocol.statistics in claims.yaml states the rules. Resamples depend only on the number of examples and the position of
the task, so all arms of a claim share them and differences stay paired.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from jaxtyping import Float
from pandas import DataFrame, Series
from scipy import special

from formerlab.report.studies.two_fold import half_indices, split_halves, two_fold_means
from formerlab.statistics import RESAMPLES, Interval, half_width, interval_over, resampled, sample_variances, student

MIN_UNITS = 20
"""With fewer documents than this, an interval covers seeds only (min_documents). With fewer examples, Student's t
replaces the bootstrap (min_examples)."""
MONTE_CARLO_GUARD = 3
"""Monte Carlo standard errors by which an interval end is moved outward before a comparison (monte_carlo_guard)."""
BATCHES = 20
"""Batches of resamples, each with its own random seed (monte_carlo_batches)."""
POOL_CHECK = 0.99
"""Quantile of the F test above which a comparison uses its own variance instead of the pooled one (pool_check)."""
UNEQUAL_DEVIATIONS = 2
"""Two arms get Welch's interval if their standard deviations between seeds differ by more than this factor."""


class MissingRowsError(Exception):
    """Rows that a criterion needs are missing; the message names them."""


class Quantity:
    """A mean with an interval, which can be added to others and to numbers, and multiplied by numbers."""

    def interval(self, confidence: float) -> Interval:
        """Return the mean and its interval at this confidence level."""
        raise NotImplementedError

    def ends(self, confidence: float) -> tuple[float, float]:
        """Return the interval ends that are compared with limits; they are infinite without an interval."""
        interval = self.interval(confidence)
        return (interval.low, interval.high) if interval.known else (-math.inf, math.inf)

    def __mul__(self, factor: float) -> Self:
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        raise NotImplementedError

    def __rmul__(self, factor: float) -> Self:
        return self * factor

    def __truediv__(self, divisor: float) -> Self:
        return self * (1 / divisor)

    def __sub__(self, other: "Self | float") -> Self:
        return self + other * -1.0


def t_interval(mean: float, variances: Sequence[tuple[float, float]], confidence: float, **fields: Any) -> Interval:
    """Return mean +- t SE with Satterthwaite's degrees of freedom.

    `variances` are pairs (variance, degrees of freedom) whose variances sum to SE^2. `fields` are further fields of
    `Interval`.
    """
    half = float(half_width([(np.asarray(variance), freedom) for variance, freedom in variances], confidence))
    return Interval(mean, mean - half, mean + half, **fields)


def residual_variance(values: Series) -> tuple[float, int] | None:
    """Return the residual mean square of values by run and seed after a fit of run + seed, and its degrees of freedom.

    Return None if no degrees of freedom remain.
    """
    columns = [pd.get_dummies(values.index.get_level_values(level)).to_numpy(float) for level in (0, 1)]
    design, flat = np.concatenate(columns, axis=1), values.to_numpy(float)
    fit, _, rank, _ = np.linalg.lstsq(design, flat, rcond=None)
    freedom = len(values) - int(rank)
    return (float(np.sum((flat - design @ fit) ** 2)) / freedom, freedom) if freedom > 0 else None


def within_run_variance(values: Sequence[Series]) -> tuple[float, int] | None:
    """Return the variance of values about the mean of their run, and its degrees of freedom.

    Return None if every run has one seed.
    """
    freedom = sum(len(run) - 1 for run in values)
    return (float(sum(run.var(ddof=0) * len(run) for run in values)) / freedom, freedom) if freedom > 0 else None


@dataclass(frozen=True)
class RunMetric:
    """One metric of a run, by seed."""

    name: str
    """Metric and run, used as identity: two RunMetrics with one name are the same."""
    values: Series = field(compare=False)
    units: DataFrame | None = field(default=None, compare=False)
    """The metric by seed (rows) and unit of the held-out split (columns), such as documents. For the logarithm of a
    metric, each value is divided by the metric of its seed (delta method)."""
    weights: Float[np.ndarray, " units"] | None = field(default=None, compare=False)
    """Weight of each unit, such as its number of tokens."""
    pooled: Callable[[Collection["RunMetric"]], tuple[float, int] | None] = field(default=lambda _: None, compare=False)
    """Returns the variance of the metric between seeds, over runs similar to the arms (`residual_variance`)."""
    model_variance: Callable[[], tuple[float, int] | None] = field(default=lambda: None, compare=False)
    """Returns the variance between seeds, pooled over the runs of this model (`within_run_variance`)."""
    shared: tuple[float, int] | None = field(default=None, compare=False)
    """Variance of a quantity that all seeds share, such as an envelope, and its degrees of freedom."""


@dataclass(frozen=True, eq=False)
class Combination(Quantity):
    """A linear combination of run metrics, paired by seed."""

    terms: Mapping[RunMetric, float]
    constant: float = 0.0

    @cached_property
    def by_seed(self) -> Series:
        """The value for each seed that all terms have."""
        columns = [c * term.values for term, c in self.terms.items()]
        return pd.concat(columns, axis=1, join="inner").sum(axis=1, skipna=False) + self.constant

    def interval(self, confidence: float) -> Interval:
        """Return Student's t interval over seeds, and over documents if there are enough."""
        values, seeds = self.by_seed.to_numpy(), len(self.by_seed)
        if seeds < 2:
            return student(values)
        variances = [*self._between_seeds(float(values.var(ddof=1)), seeds), *self.documents()]
        variances += [(c**2 * term.shared[0], term.shared[1]) for term, c in self.terms.items() if term.shared]
        return t_interval(float(values.mean()), variances, confidence, seeds=seeds, method="student")

    def __mul__(self, factor: float) -> "Combination":
        return Combination({term: factor * c for term, c in self.terms.items()}, factor * self.constant)

    def __add__(self, other: Any) -> "Combination":
        if not isinstance(other, Combination):
            return replace(self, constant=self.constant + other)
        terms = {term: c + self.terms.get(term, 0.0) for term, c in other.terms.items()}
        return Combination({**self.terms, **terms}, self.constant + other.constant)

    def _between_seeds(self, sample_variance: float, seeds: int) -> list[tuple[float, float]]:
        """Return the variance of the mean over seeds: the pooled variance, unless an F test finds the sample variance
        larger.
        """
        pooled = self._pooled()
        if pooled:
            total = sum(variance for variance, _ in pooled)
            squares = sum(variance**2 / freedom for variance, freedom in pooled)
            satterthwaite = total**2 / squares if squares else 1.0  # degrees of freedom of the total
            ratio = float(special.fdtri(seeds - 1, satterthwaite, POOL_CHECK))
            if sample_variance <= total * ratio:
                return [(variance / seeds, freedom) for variance, freedom in pooled]
        return [(sample_variance / seeds, seeds - 1)]

    def _pooled(self) -> list[tuple[float, float]]:
        """Return the variances of the combination for a single seed, and their degrees of freedom.

        The list has one variance, pooled over runs similar to the arms, or one per arm if the standard deviations of
        two arms differ by more than the factor UNEQUAL_DEVIATIONS. It is empty if the coefficients do not sum to 0 or
        there are no runs to pool.
        """
        if abs(sum(self.terms.values())) >= 1e-9:
            return []
        by_arm = [term.model_variance() for term in self.terms]
        variances = [variance for variance, _ in filter(None, by_arm)]
        if len(variances) == len(self.terms) == 2 and max(variances) > UNEQUAL_DEVIATIONS**2 * min(variances):
            return [(c**2 * arm[0], arm[1]) for c, arm in zip(self.terms.values(), by_arm, strict=True) if arm]
        pool = next(iter(self.terms)).pooled(self.terms)
        return [] if pool is None else [(pool[0] * sum(c**2 for c in self.terms.values()), pool[1])]

    def documents(self) -> list[tuple[float, float]]:
        """Return the variance due to the choice of documents; an empty list if there are fewer than MIN_UNITS or they
        are unknown.
        """
        weights = next(iter(self.terms)).weights
        if weights is None or len(weights) < MIN_UNITS:
            return []
        by_unit = np.zeros(len(weights))
        for term, coefficient in self.terms.items():
            if term.units is None or not np.array_equal(term.weights, weights):  # type: ignore[arg-type]
                return []
            by_unit += coefficient * term.units.loc[self.by_seed.index].to_numpy().mean(axis=0)
        fractions, count = weights / weights.sum(), len(weights)
        squares = float(np.sum((fractions * (by_unit - fractions @ by_unit)) ** 2))
        return [(count / (count - 1) * squares, count - 1)]


@dataclass(frozen=True, eq=False)
class PairedMean(Quantity):
    """A mean over examples. All means of one claim share their resamples, so arithmetic on them stays paired."""

    by_seed: Series
    """The point estimate: one mean over the examples for each seed."""
    replicates: Float[np.ndarray, "batches resamples"]
    """Means over the seeds for resamples of the examples."""
    examples: int
    groups: tuple[Float[np.ndarray, " examples"], ...] = ()
    """By task, the value of every example averaged over seeds; empty for a corpus metric or a chosen alpha."""
    percentiles: bool = True
    """With one seed, take the interval from percentiles of the replicates (True) or their standard deviation
    (False)."""

    def interval(self, confidence: float) -> Interval:
        """Return the point estimate with the interval over examples, and over seeds if there are at least two."""
        return self._over(self.replicates.ravel(), confidence)

    def ends(self, confidence: float) -> tuple[float, float]:
        """Return the interval ends, moved outward by the Monte Carlo error of the resampling."""
        interval = self.interval(confidence)
        if not interval.known:
            return -math.inf, math.inf
        batches = [self._over(batch, confidence) for batch in self.replicates]
        low, high = (np.std([getattr(b, end) for b in batches], ddof=1) for end in ("low", "high"))
        guard = MONTE_CARLO_GUARD / math.sqrt(len(batches))
        return float(interval.low - guard * low), float(interval.high + guard * high)

    def _over(self, replicates: Float[np.ndarray, " resamples"], confidence: float) -> Interval:
        seeds = self.by_seed.to_numpy()
        mean, fewest = float(seeds.mean()), min(map(len, self.groups), default=MIN_UNITS)
        counts: dict[str, Any] = {"seeds": len(seeds), "examples": self.examples}
        if fewest < 2:
            return Interval(mean, math.nan, math.nan, **counts)
        if fewest < MIN_UNITS:
            return t_interval(mean, sample_variances(seeds, *self.groups), confidence, method="student", **counts)
        if len(seeds) > 1 or self.percentiles:
            return interval_over(seeds, replicates, self.examples, confidence)
        half = float(special.ndtri((1 + confidence) / 2)) * replicates.std()
        return Interval(mean, float(mean - half), float(mean + half), method="bootstrap", **counts)

    def __mul__(self, factor: float) -> "PairedMean":
        return self._map(lambda numbers: factor * numbers)

    def __add__(self, other: Any) -> "PairedMean":
        if not isinstance(other, PairedMean):
            return self._map(lambda numbers: numbers + other)
        if not self.by_seed.index.equals(other.by_seed.index):
            raise MissingRowsError("two paired differences have different seeds")
        same_sizes = list(map(len, self.groups)) == list(map(len, other.groups))
        return PairedMean(
            self.by_seed + other.by_seed,
            self.replicates + other.replicates,
            min(self.examples, other.examples),
            tuple(a + b for a, b in zip(self.groups, other.groups, strict=True)) if same_sizes else (),
            self.percentiles and other.percentiles,
        )

    def _map(self, function: Callable[[Any], Any]) -> "PairedMean":
        groups = tuple(map(function, self.groups))
        return replace(self, by_seed=function(self.by_seed), replicates=function(self.replicates), groups=groups)


def ratio_of_sums(sums: Float[np.ndarray, "*shape statistics"]) -> Float[np.ndarray, "*shape"]:
    """Return sum / count, the mean, for statistics (sum, count)."""
    return np.asarray(sums[..., 0] / sums[..., 1])


@dataclass(frozen=True)
class Examples:
    """Statistics of the same examples for several seeds, in one group per task."""

    groups: tuple[Float[np.ndarray, "seeds examples statistics"], ...]
    """If alpha is chosen, each task has two groups, its halves, and the statistics are accuracies by alpha."""
    seeds: tuple[int, ...]
    names: Mapping[str, tuple[str, ...]]
    """The names of the examples by task. Arms are compared only if they answered the same examples."""
    reduce: Callable[[Float[np.ndarray, "*shape statistics"]], Float[np.ndarray, "*shape"]] = ratio_of_sums
    """Computes the metric, such as BLEU, from sums of statistics over examples, once per resample."""
    chosen: Literal["own", "common"] | None = None
    """Two-fold selection of alpha, repeated in every resample: for each half of a task, take the alpha that is best on
    the other half of this task (own) or of all tasks (common)."""

    def for_seeds(self, seeds: tuple[int, ...]) -> "Examples":
        """Return the examples of the given seeds."""
        indices = [self.seeds.index(seed) for seed in seeds]
        return replace(self, groups=tuple(group[indices] for group in self.groups), seeds=seeds)

    def estimate(self, resamples: int = RESAMPLES) -> PairedMean:
        """Return the mean over examples, averaged over tasks with equal weights, and its replicates."""
        sizes = [group.shape[1] for group in self.groups]
        by_seed = self._means([np.ones((1, size)) for size in sizes])[0]
        replicates = []
        for batch in range(BATCHES):
            draws = [resampled(size, resamples // BATCHES, 1000 * i + batch) for i, size in enumerate(sizes)]
            counts_by_group = [np.concatenate([counts for _, counts in draw]) for draw in draws]
            replicates.append(self._means(counts_by_group).mean(axis=1))
        plain = self.reduce is ratio_of_sums and self.chosen is None
        values = tuple(ratio_of_sums(group).mean(axis=0) for group in self.groups) if plain else ()
        point_estimate = Series(by_seed, self.seeds)
        return PairedMean(point_estimate, np.array(replicates), sum(sizes), values, percentiles=self.chosen is None)

    def _means(self, counts: Sequence[Float[np.ndarray, "resamples examples"]]) -> Float[np.ndarray, "resamples seeds"]:
        """Return the means for resamples that draw each example of each group as often as `counts` says."""
        if self.chosen is None:
            sums = [np.einsum("re,sek->rsk", *pair, optimize=True) for pair in zip(counts, self.groups, strict=True)]
            return np.asarray(np.mean([self.reduce(of_group) for of_group in sums], axis=0))
        return two_fold_means(self.groups, counts, common=self.chosen == "common")


def combine_alphas(by_alpha: Sequence[Examples], run: str | None, chosen: Literal["own", "common"] | None) -> Examples:
    """Return the values averaged over alphas. If `chosen` is set, return instead the values of every alpha, split into
    halves for two-fold selection. `run` is the name of the run in messages. Raises MissingRowsError if the alphas have
    different questions or seeds.
    """
    first = by_alpha[0]
    if any((examples.seeds, examples.names) != (first.seeds, first.names) for examples in by_alpha):
        raise MissingRowsError(f"run {run} has different questions for different alphas")
    stacks = [np.stack(groups, axis=-1) for groups in zip(*(examples.groups for examples in by_alpha), strict=True)]
    if chosen is None:
        return replace(first, groups=tuple(stack.mean(axis=-1) for stack in stacks))
    halves = half_indices(first.names)
    values = {task: s[:, :, 0] for task, s in zip(halves, stacks, strict=True) if len(set(halves[task])) == 2}
    names = {task: first.names[task] for task in values}
    return Examples(split_halves(values, halves), first.seeds, names, chosen=chosen)


def group_examples(rows: DataFrame, example: str, run: str) -> Examples:
    """Return the sum and count of `value` of each seed and example, by task; documents are the examples if there are
    at least MIN_UNITS.
    """
    example = "document" if "document" in rows and rows["document"].nunique() >= MIN_UNITS else example
    groups, names, seeds = [], {}, set()
    for task, block in sorted(rows.groupby("task"), key=lambda pair: str(pair[0])):
        sums = DataFrame(block.groupby(["seed", example])["value"].agg(["sum", "count"]).unstack())
        if sums.isna().any(axis=None):
            raise MissingRowsError(f"the seeds of {run} have different examples")
        groups.append(np.stack([sums["sum"].to_numpy(float), sums["count"].to_numpy(float)], axis=-1))
        names[str(task)] = tuple(map(str, sums["sum"].columns))
        seeds.add(tuple(map(int, sums.index)))
    if len(seeds) != 1:
        problem = f"the seeds of {run} have different tasks" if seeds else f"run {run} has no rows of this metric"
        raise MissingRowsError(problem)
    return Examples(tuple(groups), seeds.pop(), names)


@dataclass(frozen=True, eq=False)
class Agreement(Quantity):
    """Correlation of mixing weights between seeds: mean of Fisher's z over all pairs, with a jackknife over seeds."""

    by_seed: Float[np.ndarray, "seeds entries"]
    """The mixing weights of each seed."""

    def interval(self, confidence: float) -> Interval:
        """Return the mean correlation and its interval, transformed back from z."""
        count = len(self.by_seed)
        firsts, seconds = np.triu_indices(count, 1)
        if count < 3:
            return Interval(math.nan, math.nan, math.nan, count)
        z = np.arctanh(np.corrcoef(self.by_seed)[firsts, seconds])
        leave_one_out = np.array([z[(firsts != seed) & (seconds != seed)].mean() for seed in range(count)])
        variance = (count - 1) / count * float(np.sum((leave_one_out - leave_one_out.mean()) ** 2))
        interval = t_interval(float(z.mean()), [(variance, count - 1)], confidence, seeds=count)
        return replace(
            interval, mean=math.tanh(interval.mean), low=math.tanh(interval.low), high=math.tanh(interval.high)
        )
