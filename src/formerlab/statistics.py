"""Intervals over seeds and over examples, by the rules registered with the claims.

Trained models are compared with Student's t over seeds, paired by seed; two policies on one model with a paired
bootstrap over examples, which speaks of that model alone; policies on several models with both variances. The interval
says which it is.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import special

Method = Literal["none", "student", "bootstrap", "seeds and examples"]

RESAMPLES = 10_000
CONFIDENCE = 0.95


def weighted_means(rows: pd.DataFrame, by: Sequence[str], value: str = "loss_nats") -> "pd.Series[float]":
    """Return the mean of a column over tokens for each group; NaN where any of its values or weights is no number.

    The mean of pandas would leave such a row out, and a sum of products would count it as 0.
    """
    weight = rows["tokens"].astype(float)
    parts = {"product": rows[value].astype(float) * weight, "weight": weight}
    frame = rows[[*by]].assign(**parts, unknown=parts["product"].isna())
    sums = frame.groupby([*by], sort=False, dropna=False)[["product", "weight", "unknown"]].sum()
    return (sums["product"] / sums["weight"]).mask(sums["unknown"] > 0).rename(value)


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % interval, which are NaN where a spread cannot be estimated."""

    mean: float
    low: float
    high: float
    seeds: int
    examples: int = 0
    method: Method = "none"

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        if not self.known:
            return f"{self.mean:.4g} (n = {self.seeds})"
        half, largest = (self.high - self.low) / 2, max(abs(self.low), abs(self.high))
        if half <= 0 or largest >= 1e6:
            return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"
        # Three digits of the spread, since no more of the mean is known; at most four of the number itself.
        decimals = max(0, min(2 - math.floor(math.log10(half)), 3 - math.floor(math.log10(largest))))
        return f"{self.mean:.{decimals}f} [{self.low:.{decimals}f}, {self.high:.{decimals}f}]"


def student(values: ArrayLike) -> Interval:
    """Return mean and Student's t interval of one number per seed; a single seed has no interval."""
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

    Examples alone are resampled: every seed answers the same ones, so one resample serves all seeds of a replicate. The
    resamples depend on the number of examples and on `random_seed` alone: calls for the same examples share them, and
    differences of replicates are paired.

    `values` are numbers per example; `weights` are, for losses, the tokens of each window.
    """
    *metrics, _, examples = values.shape
    flat = values.mean(axis=-2).reshape(-1, examples)
    weight = np.ones(examples) if weights is None else np.asarray(weights, dtype=float)
    replicates = np.empty((resamples, len(flat)))
    for part, counts in resampled(examples, resamples, random_seed):
        drawn = counts * weight
        replicates[part] = drawn @ flat.T / drawn.sum(axis=1, keepdims=True)
    return replicates.reshape(resamples, *metrics)


def resampled(
    examples: int, resamples: int, random_seed: int = 0
) -> Iterator[tuple[slice, Float[np.ndarray, "part examples"]]]:
    """Yield parts of the resamples, each with how often every example is drawn in each of them."""
    chunk = max(1, 2_000_000 // max(1, examples))
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        yield slice(start, start + count), _drawn(random_seed, start, count, examples).astype(float)


@functools.lru_cache(maxsize=160)  # 80 MB for 10,000 resamples of the questions of five suites, which comparisons share
def _drawn(random_seed: int, start: int, count: int, examples: int) -> NDArray[np.uint8]:
    draws = np.random.default_rng([random_seed, start]).integers(examples, size=(count, examples))
    draws += examples * np.arange(count)[:, None]
    return np.bincount(draws.ravel(), minlength=count * examples).reshape(count, examples).astype(np.uint8)


def mean_ends(
    of_seeds: Float[np.ndarray, "*metrics seeds"],
    replicates: Float[np.ndarray, " resamples *metrics"],
    examples: int,
    confidence: float = CONFIDENCE,
) -> tuple[Float[np.ndarray, "*metrics"], Float[np.ndarray, "*metrics"]]:
    """Return both ends of the interval of a mean over seeds and examples.

    One seed: percentiles of the replicates, which resample examples. S seeds and E examples: mean +- t SE with
    SE^2 = s^2 / S + B^2, where s is the standard deviation over seeds, B that of the replicates, and t has
    Satterthwaite's degrees of freedom, SE^4 / ((s^2 / S)^2 / (S - 1) + B^4 / (E - 1)). To resample three seeds would
    not do: it excludes zero whenever they agree in sign.
    """
    seeds = of_seeds.shape[-1]
    if examples < 2:
        nothing = np.full(of_seeds.shape[:-1], math.nan)
        return nothing, nothing
    if seeds == 1:
        low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        return low, high
    between, within = of_seeds.var(axis=-1, ddof=1) / seeds, replicates.var(axis=0)
    half = half_width([(between, seeds - 1), (within, examples - 1)], confidence)
    mean = of_seeds.mean(axis=-1)
    return mean - half, mean + half


def half_width(
    parts: Sequence[tuple[Float[np.ndarray, "*metrics"], float]], confidence: float = CONFIDENCE
) -> Float[np.ndarray, "*metrics"]:
    """Return t SE, SE^2 being the sum of parts (variance, degrees of freedom), with Satterthwaite's degrees for t."""
    variance = np.sum([part for part, _ in parts], axis=0)
    doubt = np.sum([part**2 / freedom for part, freedom in parts], axis=0)
    freedom = np.divide(variance**2, doubt, out=np.ones_like(doubt), where=doubt > 0)
    half: Float[np.ndarray, "*metrics"] = special.stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(variance)
    return half


def over_examples(
    values: Float[np.ndarray, "seeds examples"],
    weights: Float[np.ndarray, " examples"] | None = None,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the weighted mean over seeds and examples and its interval; for a paired comparison, pass differences."""
    of_seeds = np.average(values, axis=1, weights=weights)
    return interval_over(of_seeds, bootstrap_means(values, weights, resamples=resamples), values.shape[1])


def interval_over(
    of_seeds: Float[np.ndarray, " seeds"],
    replicates: Float[np.ndarray, " resamples"],
    examples: int,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean over seeds with the interval of `mean_ends`."""
    low, high = mean_ends(of_seeds, replicates, examples, confidence)
    method: Method = "none" if examples < 2 else "bootstrap" if len(of_seeds) == 1 else "seeds and examples"
    return Interval(float(of_seeds.mean()), float(low), float(high), len(of_seeds), examples, method)


def standard_error(values: Float[np.ndarray, "*metrics seeds examples"]) -> Float[np.ndarray, "*metrics"]:
    """Return the standard error of each mean over examples and seeds, SE of `mean_ends` in closed form.

    With one seed it is the population standard deviation over examples by the root of their number, the spread of the
    bootstrap in the limit of many resamples; with several the variance between seeds is added.
    """
    seeds, examples = values.shape[-2:]
    within = values.mean(axis=-2).var(axis=-1) / examples
    between = values.mean(axis=-1).var(axis=-1, ddof=1) / seeds if seeds > 1 else 0.0
    return np.asarray(np.sqrt(within + between))
