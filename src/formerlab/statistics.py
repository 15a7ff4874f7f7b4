"""Intervals over seeds and over examples, by the rules that the claims were registered with.

Trained models are compared with Student's t over seeds, paired by seed; two policies on one model with a paired
bootstrap over examples. A bootstrap of a single seed speaks of that model alone, and the interval says which it is.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import special

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % interval, which are NaN where there is nothing to estimate a spread from."""

    mean: float
    low: float
    high: float
    seeds: int
    examples: int = 0
    method: Literal["none", "student", "bootstrap"] = "none"

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        if not self.known:
            return f"{self.mean:.4g} (n = {self.seeds})"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def student(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return mean and Student's t interval of one number per seed; a single seed has no interval."""
    numbers = np.asarray(values, dtype=float)
    count = len(numbers)
    mean = float(numbers.mean()) if count else math.nan
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(special.stdtrit(count - 1, (1 + confidence) / 2) * numbers.std(ddof=1) / math.sqrt(count))
    return Interval(mean, mean - half, mean + half, count, method="student")


def paired_student(
    a: Mapping[int, float], b: Mapping[int, float], confidence: float = CONFIDENCE, *, logarithm: bool = False
) -> Interval:
    """Return Student's t interval of a - b over the seeds that both have.

    Values are given by seed; with `logarithm`, ln a - ln b is taken, the logarithm of the ratio.
    """
    shared = sorted(set(a) & set(b))
    transform = math.log if logarithm else float
    return student([transform(a[seed]) - transform(b[seed]) for seed in shared], confidence)


def bootstrap_means(
    values: Float[np.ndarray, "*metrics seeds examples"],
    weights: Float[np.ndarray, "examples"] | None = None,
    *,
    resamples: int = RESAMPLES,
    random_seed: int = 0,
) -> Float[np.ndarray, "resamples *metrics"]:
    """Return bootstrap replicates of the weighted mean over examples, averaged over seeds.

    Seeds are resampled first, then examples. Every seed answers the same examples, so one resample of the examples
    serves all seeds of a replicate. The resamples depend on the counts and on `random_seed` alone: calls for the same
    examples share them, and differences of replicates are paired.

    `values` are numbers per example; `weights` are, for losses, the tokens of each window.
    """
    *metrics, seeds, examples = values.shape
    flat = values.reshape(-1, examples)
    weight = np.ones(examples) if weights is None else np.asarray(weights, dtype=float)
    replicates = np.empty((resamples, flat.shape[0] // seeds))
    chunk = max(1, 2_000_000 // examples)
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        seed_counts, example_counts = _drawn(random_seed, start, count, seeds, examples)
        drawn_seeds, drawn = seed_counts / seeds, example_counts * weight
        means = (drawn @ flat.T / drawn.sum(axis=1, keepdims=True)).reshape(count, -1, seeds)
        replicates[start : start + count] = np.einsum("rms,rs->rm", means, drawn_seeds)
    return replicates.reshape(resamples, *metrics)


@functools.lru_cache(maxsize=16)  # of 4 MB each: many comparisons are of the same examples
def _drawn(
    random_seed: int, start: int, count: int, seeds: int, examples: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the counts of seeds and of examples in the resamples from `start` on."""
    random = np.random.default_rng([random_seed, start])
    of_seeds, of_examples = (resample_counts(random, count, size) for size in (seeds, examples))
    return of_seeds.astype(np.uint16), of_examples.astype(np.uint16)


def resample_counts(random: np.random.Generator, resamples: int, size: int) -> Float[np.ndarray, "resamples size"]:
    """Return how often each of `size` things is drawn in `size` draws with replacement, per resample."""
    draws = random.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(draws.ravel(), minlength=resamples * size).reshape(resamples, size).astype(float)


def bootstrap(
    values: Float[np.ndarray, "seeds examples"],
    weights: Float[np.ndarray, "examples"] | None = None,
    confidence: float = CONFIDENCE,
    *,
    resamples: int = RESAMPLES,
    random_seed: int = 0,
) -> Interval:
    """Return the weighted mean and its percentile interval; for a paired comparison, pass the differences."""
    seeds, examples = values.shape
    mean = float(np.average(values, axis=1, weights=weights).mean())
    if examples < 2:
        return Interval(mean, math.nan, math.nan, seeds, examples)
    replicates = bootstrap_means(values, weights, resamples=resamples, random_seed=random_seed)
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, float(low), float(high), seeds, examples, "bootstrap")


def standard_error(values: Float[np.ndarray, "*metrics seeds examples"]) -> Float[np.ndarray, "*metrics"]:
    """Return the standard error of each mean over examples and seeds.

    It is the standard deviation of `bootstrap_means` in the limit of many resamples, in closed form: with one seed the
    population standard deviation over examples by the root of their number, with several the variance between seeds and
    that of seeds times examples as well.
    """
    seeds, examples = values.shape[-2:]
    mean = values.mean(axis=(-1, -2))
    of_seed = values.mean(axis=-1) - mean[..., None]
    of_example = values.mean(axis=-2) - mean[..., None]
    both = values - mean[..., None, None] - of_seed[..., :, None] - of_example[..., None, :]
    variance = (of_seed**2).sum(axis=-1) / seeds**2 + (of_example**2).sum(axis=-1) / examples**2
    return np.asarray(np.sqrt(variance + (both**2).sum(axis=(-1, -2)) / (seeds * examples) ** 2))
