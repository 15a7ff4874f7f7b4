"""Confidence intervals over seeds and examples, by the rules registered with the claims.

Trained models are compared with Student's t over seeds, paired by seed. Two policies on one model are compared with a
paired bootstrap over examples, which is valid for this model only. Policies on several models are compared with the sum
of the variances over seeds and over examples.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import special

Method = Literal["none", "student", "bootstrap", "seeds and examples"]

RESAMPLES = 10_000
CONFIDENCE = 0.95


def weighted_means(rows: pd.DataFrame, by: Sequence[str], value: str = "loss_nats") -> "pd.Series[float]":
    """Return the mean of a column for each group, weighted by tokens; NaN if any value or weight is NaN."""
    weight = rows["tokens"].astype(float)
    product = rows[value].astype(float) * weight
    frame = rows[[*by]].assign(product=product, weight=weight, unknown=product.isna())
    sums = frame.groupby([*by], sort=False, dropna=False)[["product", "weight", "unknown"]].sum()
    return (sums["product"] / sums["weight"]).mask(sums["unknown"] > 0).rename(value)


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95 % interval; the ends are NaN if the variance cannot be estimated."""

    mean: float
    low: float
    high: float
    seeds: int
    examples: int = 0
    method: Method = "none"

    @property
    def known(self) -> bool:
        """Whether both ends are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        if not self.known:
            return f"{self.mean:.4g} (n = {self.seeds})"
        half, largest = (self.high - self.low) / 2, max(abs(self.low), abs(self.high))
        if half <= 0 or largest >= 1e6:
            return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        # Three significant digits of the half-width, but at most four of the largest end.
        decimals = max(0, min(2 - math.floor(math.log10(half)), 3 - math.floor(math.log10(largest))))
        return f"{self.mean:.{decimals}f} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"


def student(values: ArrayLike) -> Interval:
    """Return the mean and Student's t interval of one number per seed; a single seed has no interval."""
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    mean = float(numbers.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * numbers.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half, count, method="student")


def bootstrap_means(
    values: Float[np.ndarray, "*metrics seeds examples"],
    weights: Float[np.ndarray, " examples"] | None = None,
    *,
    resamples: int = RESAMPLES,
    random_seed: int = 0,
) -> Float[np.ndarray, " resamples *metrics"]:
    """Return bootstrap replicates of the weighted mean over examples, averaged over seeds.

    Each replicate uses one resample of the examples for all seeds. The resamples depend only on the number of examples
    and on `random_seed`, so that calls for the same examples give paired replicates. `weights` are the weights of the
    examples, such as the tokens of each window for losses; None means equal weights.
    """
    *metrics, _, examples = values.shape
    flat = values.mean(axis=-2).reshape(-1, examples)
    weight = np.ones(examples) if weights is None else np.asarray(weights, dtype=float)
    replicates = np.empty((resamples, len(flat)))
    for chunk, counts in resampled(examples, resamples, random_seed):
        weighted_counts = counts * weight
        replicates[chunk] = weighted_counts @ flat.T / weighted_counts.sum(axis=1, keepdims=True)
    return replicates.reshape(resamples, *metrics)


def resampled(
    examples: int, resamples: int, random_seed: int = 0
) -> Iterator[tuple[slice, Float[np.ndarray, "chunk examples"]]]:
    """Yield (slice, counts) of chunks of the resamples; counts are how often each resample contains each example."""
    size = max(1, 2_000_000 // max(1, examples))
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        yield slice(start, start + count), _sampled_counts(random_seed, start, count, examples).astype(float)


@functools.lru_cache(maxsize=160)  # 80 MB for 10,000 resamples of five suites; comparisons share them
def _sampled_counts(random_seed: int, start: int, count: int, examples: int) -> NDArray[np.uint8]:
    indices = np.random.default_rng([random_seed, start]).integers(examples, size=(count, examples))
    indices += examples * np.arange(count)[:, None]
    return np.bincount(indices.ravel(), minlength=count * examples).reshape(count, examples).astype(np.uint8)


def mean_ends(
    seed_means: Float[np.ndarray, "*metrics seeds"],
    replicates: Float[np.ndarray, " resamples *metrics"],
    examples: int,
    confidence: float = CONFIDENCE,
) -> tuple[Float[np.ndarray, "*metrics"], Float[np.ndarray, "*metrics"]]:
    """Return both ends of the interval of a mean over seeds and examples; NaN with fewer than two examples.

    `seed_means` are the means over examples by seed, and `replicates` their bootstrap replicates. With one seed, the
    ends are percentiles of the replicates. With S seeds and E examples, they are mean +- t SE with
    SE^2 = s^2 / S + B^2, where s is the standard deviation over seeds, B is the standard deviation of the replicates,
    and t has Satterthwaite's degrees of freedom, SE^4 / ((s^2 / S)^2 / (S - 1) + B^4 / (E - 1)).
    """
    seeds = seed_means.shape[-1]
    if examples < 2:
        undefined = np.full(seed_means.shape[:-1], math.nan)
        return undefined, undefined
    if seeds == 1:
        low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        return low, high
    between, within = seed_means.var(axis=-1, ddof=1) / seeds, replicates.var(axis=0)
    half = half_width([(between, seeds - 1), (within, examples - 1)], confidence)
    mean = seed_means.mean(axis=-1)
    return mean - half, mean + half


def half_width(
    components: Sequence[tuple[Float[np.ndarray, "*metrics"], float]], confidence: float = CONFIDENCE
) -> Float[np.ndarray, "*metrics"]:
    """Return t SE, where SE^2 is the sum of the components' variances, and t has Satterthwaite's degrees of freedom.

    A component is a pair (variance, degrees of freedom).
    """
    variance = np.sum([component for component, _ in components], axis=0)
    denominator = np.sum([component**2 / freedom for component, freedom in components], axis=0)
    freedom = np.divide(variance**2, denominator, out=np.ones_like(denominator), where=denominator > 0)
    half: Float[np.ndarray, "*metrics"] = special.stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(variance)
    return half


def sample_variances(
    seed_means: Float[np.ndarray, "*metrics seeds"], *groups: Float[np.ndarray, "*metrics examples"]
) -> list[tuple[Any, int]]:
    """Return the components of `half_width` for Student's t: the variance of a mean over seeds and over examples.

    `groups` has the values of the examples of every task, averaged over seeds; the tasks have equal weights. A single
    seed has no variance.
    """
    seeds, tasks = seed_means.shape[-1], len(groups)
    over_seeds = [(seed_means.var(axis=-1, ddof=1) / seeds, seeds - 1)] if seeds > 1 else []
    return over_seeds + [(g.var(axis=-1, ddof=1) / g.shape[-1] / tasks**2, g.shape[-1] - 1) for g in groups]


def over_examples(
    values: Float[np.ndarray, "seeds examples"],
    weights: Float[np.ndarray, " examples"] | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the interval of the weighted mean over seeds and examples; for a paired comparison, pass differences."""
    seed_means = np.average(values, axis=1, weights=weights)
    return interval_over(seed_means, bootstrap_means(values, weights, resamples=resamples), values.shape[1])


def interval_over(
    seed_means: Float[np.ndarray, " seeds"],
    replicates: Float[np.ndarray, " resamples"],
    examples: int,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean over seeds with the interval of `mean_ends`."""
    low, high = mean_ends(seed_means, replicates, examples, confidence)
    method: Method = "none" if examples < 2 else "bootstrap" if len(seed_means) == 1 else "seeds and examples"
    return Interval(float(seed_means.mean()), float(low), float(high), len(seed_means), examples, method)


def standard_error(values: Float[np.ndarray, "*metrics seeds examples"]) -> Float[np.ndarray, "*metrics"]:
    """Return the standard error of each mean over examples and seeds, a closed form of the SE of `mean_ends`.

    With one seed, it is the population standard deviation over examples divided by the square root of their number,
    which equals the standard deviation of the bootstrap for many resamples. With several seeds, the variance between
    seeds is added.
    """
    seeds, examples = values.shape[-2:]
    within = values.mean(axis=-2).var(axis=-1) / examples
    between = values.mean(axis=-1).var(axis=-1, ddof=1) / seeds if seeds > 1 else 0.0
    return np.asarray(np.sqrt(within + between))


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Return the mean of |accuracy - confidence| over bins of equal width (arXiv:1706.04599, eq. 3).

    Bins are weighted by their number of predictions and include their upper end. `confidence` has the probability of
    the predicted class of each prediction, and `correct` has 1 for a correct prediction, otherwise 0.
    """
    confidences, hits = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    bin_indices = np.clip(np.ceil(confidences * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(bin_indices, weights=hits - confidences, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidences))
