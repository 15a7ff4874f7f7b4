"""One evaluation of a criterion: what it names, and whether it holds or fails, at a level of confidence."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from formerlab.report.claims.evidence import Evidence
from formerlab.report.claims.expression import evaluate
from formerlab.report.claims.quantity import MissingRowsError, NoValueError, Paired, Quantity, Seeds

Outcome = Literal["holds", "fails", "undecided", "withdrawn", "not judged"]


@dataclass(frozen=True)
class ItemVerdict:
    """What the criterion says of one item, or of a claim without items."""

    item: str | None
    outcome: Outcome
    values: Mapping[str, str] = field(default_factory=dict)
    """What `let` names, as text: mean and interval."""
    reason: str = ""
    """Why there is no verdict."""
    seeds: int = 0
    examples: int = 0


class Judgement:
    """The criterion of a claim on one item."""

    def __init__(self, evidence: Evidence, item: str | None, confidence: float | None = None) -> None:
        self.evidence, self.item = evidence, item
        self.criterion, self.min_seeds = evidence.claim.criterion, evidence.protocol.min_seeds
        self.confidence = evidence.protocol.confidence if confidence is None else confidence
        self.fewest_seeds = math.inf
        self.seeds = self.examples = 0
        self.names: dict[str, Any] = {}

    def verdict(self) -> ItemVerdict:
        """Return the verdict; a missing arm is named in its reason."""
        try:
            for name, expression in self.criterion.let.items():
                self.names[name] = self._evaluate(expression)
            met = self.criterion.requires is None or self._evaluate(self.criterion.requires)
            outcome = self._outcome(met)
        except MissingRowsError as error:
            return ItemVerdict(self.item, "not judged", self._texts(), str(error))
        except NoValueError as error:
            return ItemVerdict(self.item, "undecided", self._texts(), str(error))
        except ZeroDivisionError:
            return ItemVerdict(self.item, "not judged", self._texts(), "a number to divide by is zero")
        reason = ""
        if not met:
            reason = f"requires {self.criterion.requires}"
        elif self.fewest_seeds < self.min_seeds:
            reason = f"{self.fewest_seeds} seeds of {self.min_seeds}"
        return ItemVerdict(self.item, outcome, self._texts(), reason, self.seeds, self.examples)

    def _outcome(self, met: bool) -> Outcome:
        if not met or self.fewest_seeds < self.min_seeds:
            return "undecided"
        if self._evaluate(self.criterion.holds):
            return "holds"
        return "fails" if self._evaluate(self.criterion.fails) else "undecided"

    def _evaluate(self, expression: str) -> Any:
        return evaluate(expression, self.names, self._functions(), self.evidence.claim.id)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "value": self._value,
            "diff": lambda a, b, metric: self._value(a, metric) - self._value(b, metric),
            "ratio": self._ratio,
            "logratio": lambda a, b, metric: self._ratio(a, b, metric).map(math.log),
            "paired": self._paired,
            "mean": lambda quantity: _known(quantity.interval(self.confidence).mean),
            "lo": lambda quantity: _known(quantity.interval(self.confidence).low, -math.inf),
            "hi": lambda quantity: _known(quantity.interval(self.confidence).high, math.inf),
            "number": self._number,
            "error": self._number,
            "slope": lambda cost, size: self._number(f"slope:{cost}:{size}"),
            "log": math.log,
            "abs": abs,
            "min": min,
            "max": max,
        }

    def _value(self, arm: str, metric: str) -> Seeds:
        seeds = self.evidence.value(self.item, arm, metric)
        self.fewest_seeds = min(self.fewest_seeds, len(seeds.values))
        self.seeds = max(self.seeds, len(seeds.values))
        return seeds

    def _ratio(self, a: str, b: str, metric: str) -> Seeds:
        return self._value(a, metric) / self._value(b, metric)

    def _paired(self, a: str, b: str, metric: str) -> Paired:
        paired = self.evidence.paired(self.item, a, b, metric)
        self.seeds, self.examples = len(paired.of_seeds), paired.examples
        return paired

    def _number(self, name: str) -> float:
        return self.evidence.number(self.item, name)

    def _texts(self) -> dict[str, str]:
        return {
            name: str(value.interval(self.confidence)) if isinstance(value, Quantity) else f"{value:.4g}"
            for name, value in self.names.items()
        }


def _known(value: float, otherwise: float = math.nan) -> float:
    """Return the value; an interval without ends reaches everywhere, so nothing follows from it."""
    return otherwise if math.isnan(value) else value
