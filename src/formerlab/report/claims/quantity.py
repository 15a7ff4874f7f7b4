"""Quantities with an uncertainty: one number per seed, or one per seed with replicates over the same examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from formerlab.statistics import Interval, interval_over, student

Same = TypeVar("Same", bound="Quantity")


class MissingRowsError(Exception):
    """What a criterion asks for has no rows; the message says what."""


class NoValueError(Exception):
    """The rows are there, but the quantity has no value for them; the message says why."""


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
        raise TypeError("numbers per seed and paired differences do not mix")

    def map(self, function: Callable[[float], float]) -> "Seeds":
        """Return a function of every number."""
        return Seeds({seed: function(value) for seed, value in self.values.items()})


@dataclass(frozen=True)
class Paired(Quantity):
    """A mean over the same examples; those of one claim share their resamples, so arithmetic on them stays paired."""

    of_seeds: Mapping[int, float]
    """The point estimate: one mean over the examples for each seed."""
    replicates: Float[np.ndarray, " resamples"]
    """Means over the seeds for resamples of the examples."""
    examples: int

    def interval(self, confidence: float) -> Interval:
        """Return the point estimate with the interval over examples, and over seeds where there are several."""
        return interval_over(np.array(list(self.of_seeds.values())), self.replicates, self.examples, confidence)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any]) -> "Paired":
        if isinstance(other, Paired):
            if self.of_seeds.keys() != other.of_seeds.keys():
                raise MissingRowsError("two paired differences are of different seeds")
            of_seeds = {seed: operation(value, other.of_seeds[seed]) for seed, value in self.of_seeds.items()}
            replicates = operation(self.replicates, other.replicates)
            return Paired(of_seeds, replicates, min(self.examples, other.examples))
        if isinstance(other, int | float):
            of_seeds = {seed: operation(value, other) for seed, value in self.of_seeds.items()}
            return Paired(of_seeds, operation(self.replicates, other), self.examples)
        raise TypeError("paired differences and numbers per seed do not mix")
