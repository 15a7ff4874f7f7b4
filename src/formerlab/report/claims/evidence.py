"""What the criterion of one claim asks for, each found once: values and differences of arms, numbers of its check."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from formerlab.errors import UserError
from formerlab.report.claims.arms import Arm
from formerlab.report.claims.bootstrap import paired_difference
from formerlab.report.claims.quantity import MissingRowsError, Paired, Seeds
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

    def run(self, item: str | None, arm: str) -> str | None:
        """Return the run that stands for an arm; nothing where a plain number or the best of several does."""
        return self._arm(item, arm).run

    def value(self, item: str | None, arm: str, metric: str) -> Seeds:
        """Return one number per seed. Raises MissingRowsError where the arm has no rows."""
        chosen, rows = self._arm(item, arm), self._known_rows()
        return self._once((chosen, self._metric(metric)), lambda: rows.value(chosen, metric))

    def paired(self, item: str | None, a: str, b: str, metric: str) -> Paired:
        """Return the mean difference over the same examples."""
        left, right = self._arm(item, a), self._arm(item, b)

        def difference() -> Paired:
            rows = self._known_rows()
            # A constant takes the shape of the rows that it is compared with.
            other = rows.examples(right if left.constant is not None else left, metric)
            left_rows = rows.examples(left, metric, other) if left.constant is not None else other
            right_rows = other if left.constant is not None else rows.examples(right, metric, other)
            try:
                return paired_difference(left_rows, right_rows, self.protocol.bootstrap_resamples)
            except MissingRowsError as error:
                raise MissingRowsError(f"{a} and {b}: {error}") from None

        return self._once((left, right, self._metric(metric)), difference)

    def number(self, item: str | None, name: str) -> float:
        """Return a number of the exact check, or one that is counted in the rows."""
        for key in (f"{item}/{name}", name):
            if key in self.numbers:
                return self.numbers[key]
        if name.startswith("realised_budget_"):
            arm = self._arm(item, name.removeprefix("realised_budget_"))
            metric = "loss_nats" if "loss_nats" in self.claim.criterion.metrics else "accuracy"
            return self._known_rows().realised_budget(arm, metric)
        if name == "smallest_seed_correlation_off_diagonal":
            return self._known_rows().seed_correlation(self._arm(item, "dense"))
        raise MissingRowsError(f"no check has given {name}")

    def _once(self, key: tuple[Any, ...], find: Callable[[], Found]) -> Found:
        if key not in self._found:
            self._found[key] = find()
        found: Found = self._found[key]
        return found

    def _known_rows(self) -> Rows:
        if self._rows is None:
            raise MissingRowsError("the study maps no runs to this claim")
        return self._rows

    def _arm(self, item: str | None, name: str) -> Arm:
        if name not in self.claim.arms:
            raise UserError(f"{self.claim.id}: unknown arm {name!r}; there are {', '.join(self.claim.arms)}")
        arms = self._known_rows().arms.of(item)
        if name not in arms:
            raise MissingRowsError(f"the study maps no run to arm {name}" + (f" of {item}" if item else ""))
        return arms[name]

    def _metric(self, metric: str) -> str:
        if metric not in self.protocol.metrics:
            raise UserError(f"{self.claim.id}: unknown metric {metric!r}; there are {', '.join(self.protocol.metrics)}")
        return metric
