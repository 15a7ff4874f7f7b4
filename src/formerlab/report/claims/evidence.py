"""What the criterion of one claim asks for, each found once: numbers and differences of arms, numbers of its check."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from formerlab.errors import UserError
from formerlab.report.claims.arms import Arm
from formerlab.report.claims.bootstrap import Sample
from formerlab.report.claims.quantity import Agreement, Level, MissingRowsError, Paired
from formerlab.report.claims.registry import Claim, Protocol
from formerlab.report.claims.rows import Rows

Numbers = Mapping[str, float]
"""Results of an exact check: name to number, `item/name` where they differ by item, `slope:cost:size` for slopes."""

Found = TypeVar("Found")


class Evidence:
    """Rows and numbers of one claim at one scale; verdicts at several levels of confidence share it."""

    def __init__(self, claim: Claim, protocol: Protocol, rows: Rows | None, numbers: Numbers) -> None:
        self.claim, self.protocol, self.numbers = claim, protocol, numbers
        self._rows = rows
        self._found: dict[tuple[Any, ...], Any] = {}

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs that were read so far."""
        return () if self._rows is None else tuple(sorted(self._rows.used))

    @property
    def rows(self) -> Rows:
        """The rows of the study. Raises MissingRowsError where it maps no runs to the claim."""
        if self._rows is None:
            raise MissingRowsError("the study maps no runs to this claim")
        return self._rows

    def arm(self, item: str | None, name: str) -> Arm:
        """Return the arm of an item."""
        if name not in self.claim.arms:
            raise UserError(f"{self.claim.id}: unknown arm {name!r}; there are {', '.join(self.claim.arms)}")
        arms = self.rows.arms.of(item)
        if name not in arms:
            raise MissingRowsError(f"the study maps no run to arm {name}" + (f" of {item}" if item else ""))
        return arms[name]

    def level(self, item: str | None, arm: str, metric: str, *, logarithm: bool = False) -> Level:
        """Return one number per seed. Raises MissingRowsError where the arm has no rows."""
        chosen, rows = self.arm(item, arm), self.rows
        key = (chosen, self._metric(metric), logarithm)
        return self._once(key, lambda: rows.level(chosen, metric, logarithm=logarithm))

    def paired(self, item: str | None, a: str, b: str, metric: str) -> Paired:
        """Return the mean difference over the same examples; a constant is compared with rows."""
        left, right = self.arm(item, a), self.arm(item, b)
        if left.constant is not None:
            return -self.paired(item, b, a, metric)
        of_left = self._once((left, self._metric(metric), "sample"), lambda: self.rows.sample(left, metric))
        if right.constant is not None:
            return self._estimate(left, metric, of_left.seeds) - right.constant
        of_right = self._once((right, metric, "sample"), lambda: self.rows.sample(right, metric))
        if of_left.names != of_right.names or type(of_left) is not type(of_right):
            raise MissingRowsError(f"{a} and {b}: the arms have rows of different examples")
        if not (seeds := tuple(seed for seed in of_left.seeds if seed in of_right.seeds)):
            raise MissingRowsError(f"{a} and {b}: the arms have no seed in common")
        return self._estimate(left, metric, seeds) - self._estimate(right, metric, seeds)

    def over_chance(self, arm: Arm, suite: str | None = None) -> float:
        """Return the lower end of accuracy minus guessing."""

        def lower_end() -> float:
            sample = self.rows.sample(arm, "accuracy", above_chance=True, suite=suite)
            return sample.estimate(self.protocol.bootstrap_resamples).ends(self.protocol.confidence)[0]

        return self._once((arm, suite, "chance"), lower_end)

    def agreement(self, item: str | None, arm: str, metric: str) -> Agreement:
        """Return the correlation of seeds."""
        return self._once((self.arm(item, arm), self._metric(metric)), lambda: self.rows.agreement(self.arm(item, arm)))

    def number(self, item: str | None, name: str) -> float:
        """Return a number of the exact check, or one that is counted in the rows."""
        for key in (f"{item}/{name}", name):
            if key in self.numbers:
                return self.numbers[key]
        if name.startswith("realised_budget_"):
            return self.rows.realised_budget(self.arm(item, name.removeprefix("realised_budget_")), self.measured)
        raise MissingRowsError(f"no check has given {name}")

    @property
    def measured(self) -> str:
        """The metric by which policies are compared."""
        return next(iter(sorted(self.claim.criterion.metrics)), "accuracy")

    def _estimate(self, arm: Arm, metric: str, seeds: tuple[int, ...]) -> Paired:
        sample: Sample = self._found[arm, metric, "sample"]
        resamples = self.protocol.bootstrap_resamples
        return self._once((arm, metric, seeds), lambda: sample.of(seeds).estimate(resamples))

    def _once(self, key: tuple[Any, ...], find: Callable[[], Found]) -> Found:
        if key not in self._found:
            self._found[key] = find()
        found: Found = self._found[key]
        return found

    def _metric(self, metric: str) -> str:
        if metric not in self.protocol.metrics:
            raise UserError(f"{self.claim.id}: unknown metric {metric!r}; there are {', '.join(self.protocol.metrics)}")
        return metric
