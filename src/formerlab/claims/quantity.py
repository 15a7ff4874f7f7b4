"""Quantities with an uncertainty: one number per seed, or the replicates of a bootstrap over examples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from formerlab.statistics import Interval, student

Same = TypeVar("Same", bound="Quantity")


class Quantity:
    """Something that has a mean and an interval; arithmetic with numbers and with its like."""

    def interval(self, confidence: float) -> Interval:
        """Return mean and interval at this level."""
        raise NotImplementedError

    def _with(self: Same, other: Any, operation: Callable[[Any, Any], Any]) -> Same:
        raise NotImplementedError

    def __add__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: a / b)

    def __radd__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: b + a)

    def __rsub__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: b - a)

    def __rmul__(self: Same, other: Any) -> Same:
        return self._with(other, lambda a, b: b * a)

    def __neg__(self: Same) -> Same:
        return self._with(-1.0, lambda a, b: a * b)


@dataclass(frozen=True)
class Seeds(Quantity):
    """One number per seed; two of them are paired by seed."""

    values: Mapping[int, float]

    def interval(self, confidence: float) -> Interval:
        """Return Student's t interval."""
        return student(list(self.values.values()), confidence)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> "Seeds":
        if isinstance(other, Seeds):
            shared = sorted(self.values.keys() & other.values.keys())
            return Seeds({seed: operation(self.values[seed], other.values[seed]) for seed in shared})
        if isinstance(other, int | float):
            return Seeds({seed: operation(value, other) for seed, value in self.values.items()})
        raise TypeError("numbers per seed and bootstrap replicates do not mix")

    def map(self, function: Callable[[float], float]) -> "Seeds":
        """Return a function of every number."""
        return Seeds({seed: function(value) for seed, value in self.values.items()})


@dataclass(frozen=True)
class Replicates(Quantity):
    """Replicates of a bootstrap; those of one claim share their resamples, so arithmetic on them stays paired."""

    values: Float[np.ndarray, "resamples"]
    seeds: int
    examples: int

    def interval(self, confidence: float) -> Interval:
        """Return the percentile interval."""
        mean = float(self.values.mean())
        if self.examples < 2:
            return Interval(mean, math.nan, math.nan, self.seeds, self.examples)
        low, high = np.quantile(self.values, [(1 - confidence) / 2, (1 + confidence) / 2])
        return Interval(mean, float(low), float(high), self.seeds, self.examples, "bootstrap")

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> "Replicates":
        if isinstance(other, Replicates):
            seeds, examples = min(self.seeds, other.seeds), min(self.examples, other.examples)
            return Replicates(operation(self.values, other.values), seeds, examples)
        if isinstance(other, int | float):
            return Replicates(operation(self.values, other), self.seeds, self.examples)
        raise TypeError("bootstrap replicates and numbers per seed do not mix")
