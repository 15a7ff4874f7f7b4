"""The verdict on a claim: its criterion, evaluated on the rows of its arms or on the numbers of its exact check."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from formerlab.claims.book import Claim, Protocol
from formerlab.claims.bootstrap import paired_replicates
from formerlab.claims.expression import evaluate
from formerlab.claims.quantity import Quantity, Seeds
from formerlab.claims.rows import MissingRowsError, Rows
from formerlab.errors import UserError

Outcome = Literal["holds", "fails", "undecided", "not judged"]
Numbers = Mapping[str, float]
"""Results of an exact check: name to number, `item/name` where they differ by item, `slope:cost:size` for slopes."""

WORST: tuple[Outcome, ...] = ("fails", "not judged", "undecided", "holds")
"""How items combine: the first of these that any item has."""


@dataclass(frozen=True)
class ItemVerdict:
    """What the criterion says of one item, or of a claim without items."""

    item: str | None
    outcome: Outcome
    values: dict[str, str] = field(default_factory=dict)
    """What `let` names, as text: mean and interval."""
    reason: str = ""
    """Why there is no verdict."""
    seeds: int = 0
    examples: int = 0


@dataclass(frozen=True)
class Verdict:
    """A claim at a scale."""

    claim: Claim
    scale: str
    outcome: Outcome
    standing: Literal["judged", "provisional", "indicative"]
    """judged: the claim names the scale; provisional: overnight, where it does not; indicative: shown, not judged."""
    items: tuple[ItemVerdict, ...]
    runs: tuple[str, ...] = ()
    holm_p: float | None = None
    """For headline claims with rows: p after Holm's correction."""


def judge(claim: Claim, protocol: Protocol, scale: str, rows: Rows | None, numbers: Numbers) -> Verdict:
    """Return the verdict on one claim; `rows` are those of its arms, `numbers` those of its exact check."""
    standing = _standing(claim, scale)
    items = claim.criterion.for_each or (None,)
    verdicts = tuple(_Judgement(claim, protocol, rows, numbers, item).verdict() for item in items)
    outcome = next(outcome for outcome in WORST if any(verdict.outcome == outcome for verdict in verdicts))
    runs = tuple(sorted(rows.used)) if rows is not None else ()
    return Verdict(claim, scale, outcome, standing, verdicts, runs)


def p_value(claim: Claim, protocol: Protocol, rows: Rows | None, numbers: Numbers) -> float | None:
    """Return the smallest a for which the claim holds when every interval is taken at level 1 - a, to 1e-4.

    None where there are no rows; 1 where it holds at no level.
    """
    items = claim.criterion.for_each or (None,)

    def holds(error: float) -> bool | None:
        outcomes = [
            _Judgement(claim, protocol, rows, numbers, item, confidence=1 - error).verdict().outcome for item in items
        ]
        return None if "not judged" in outcomes else all(outcome == "holds" for outcome in outcomes)

    if (widest := holds(1 - 1e-4)) is None:
        return None
    if not widest:
        return 1.0
    low, high = 0.0, 1 - 1e-4
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p after Holm's step-down correction for their number."""
    corrected, so_far = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        so_far = max(so_far, min(1.0, p * (len(p_values) - rank)))
        corrected[name] = so_far
    return corrected


def judge_all(
    claims: Iterable[Claim],
    protocol: Protocol,
    scale: str,
    rows_of: Callable[[Claim], Rows | None],
    numbers_of: Callable[[Claim], Numbers],
) -> list[Verdict]:
    """Return the verdicts on all claims, headline claims with their corrected p."""
    verdicts = [judge(claim, protocol, scale, rows_of(claim), numbers_of(claim)) for claim in claims]
    p_values: dict[str, float] = {}
    for verdict in verdicts:
        if verdict.claim.headline and verdict.outcome != "not judged":
            p = p_value(verdict.claim, protocol, rows_of(verdict.claim), numbers_of(verdict.claim))
            p_values |= {} if p is None else {verdict.claim.id: p}
    corrected = holm(p_values)
    return [_with_p(verdict, corrected.get(verdict.claim.id)) for verdict in verdicts]


def _with_p(verdict: Verdict, p: float | None) -> Verdict:
    fields = {name: getattr(verdict, name) for name in verdict.__dataclass_fields__}
    return Verdict(**(fields | {"holm_p": p}))


def _standing(claim: Claim, scale: str) -> Literal["judged", "provisional", "indicative"]:
    """Overnight is judged where laptop is, and provisional elsewhere (protocol.scale_overnight)."""
    if scale == "overnight":
        return "judged" if "laptop" in claim.scales.judged else "provisional"
    return "judged" if scale in claim.scales.judged else "indicative"


class _Judgement:
    """One evaluation of a criterion."""

    def __init__(
        self,
        claim: Claim,
        protocol: Protocol,
        rows: Rows | None,
        numbers: Numbers,
        item: str | None,
        confidence: float | None = None,
    ) -> None:
        self.claim, self.protocol, self.rows, self.numbers, self.item = claim, protocol, rows, numbers, item
        self.confidence = protocol.confidence if confidence is None else confidence
        self.fewest_seeds = math.inf
        self.seeds = self.examples = 0
        self.names: dict[str, Any] = {}

    def verdict(self) -> ItemVerdict:
        criterion = self.claim.criterion
        try:
            for name, expression in criterion.let.items():
                self.names[name] = self._evaluate(expression)
            met = criterion.requires is None or self._evaluate(criterion.requires)
            outcome = self._outcome(met)
        except MissingRowsError as error:
            return ItemVerdict(self.item, "not judged", self._texts(), str(error))
        except ZeroDivisionError:
            return ItemVerdict(self.item, "not judged", self._texts(), "a number to divide by is zero")
        reason = ""
        if not met:
            reason = f"requires {criterion.requires}"
        elif self.fewest_seeds < self.protocol.min_seeds:
            reason = f"{self.fewest_seeds} seeds of {self.protocol.min_seeds}"
        return ItemVerdict(self.item, outcome, self._texts(), reason, self.seeds, self.examples)

    def _outcome(self, met: bool) -> Outcome:
        if not met or self.fewest_seeds < self.protocol.min_seeds:
            return "undecided"
        if self._evaluate(self.claim.criterion.holds):
            return "holds"
        return "fails" if self._evaluate(self.claim.criterion.fails) else "undecided"

    def _evaluate(self, expression: str) -> Any:
        return evaluate(expression, self.names, self._functions(), self.claim.id)

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

    def _arm(self, name: str) -> Any:
        if name not in self.claim.arms and name not in ("chance", "even"):
            raise UserError(f"{self.claim.id}: unknown arm {name!r}; there are {', '.join(self.claim.arms)}")
        if self.rows is None:
            raise MissingRowsError("the study maps no runs to this claim")
        arms = self.rows.arms.of(self.item)
        if name not in arms:
            raise MissingRowsError(f"the study maps no run to arm {name}" + (f" of {self.item}" if self.item else ""))
        return arms[name]

    def _metric(self, metric: str) -> str:
        if metric not in self.protocol.metrics:
            raise UserError(f"{self.claim.id}: unknown metric {metric!r}; there are {', '.join(self.protocol.metrics)}")
        return metric

    def _value(self, arm: str, metric: str) -> Seeds:
        chosen = self._arm(arm)
        assert self.rows is not None
        seeds = self.rows.value(chosen, self._metric(metric))
        self.fewest_seeds = min(self.fewest_seeds, len(seeds.values))
        self.seeds = max(self.seeds, len(seeds.values))
        return seeds

    def _ratio(self, a: str, b: str, metric: str) -> Seeds:
        return self._value(a, metric) / self._value(b, metric)

    def _paired(self, a: str, b: str, metric: str) -> Quantity:
        left, right = self._arm(a), self._arm(b)
        assert self.rows is not None
        self._metric(metric)
        if left.constant is not None:
            right_rows = self.rows.examples(right, metric)
            left_rows = self.rows.examples(left, metric, right_rows)
        else:
            left_rows = self.rows.examples(left, metric)
            right_rows = self.rows.examples(right, metric, left_rows)
        shapes = [[group.shape for group in rows.groups] for rows in (left_rows, right_rows)]
        if shapes[0] != shapes[1]:
            raise MissingRowsError(f"arms {a} and {b} have rows of different examples")
        self.seeds, self.examples = left_rows.seeds, left_rows.examples
        return paired_replicates(left_rows, right_rows, self.protocol.bootstrap_resamples)

    def _number(self, name: str) -> float:
        for key in (f"{self.item}/{name}", name):
            if key in self.numbers:
                return self.numbers[key]
        if self.rows is not None and (found := self._row_number(name)) is not None:
            return found
        raise MissingRowsError(f"no check has given {name}")

    def _row_number(self, name: str) -> float | None:
        assert self.rows is not None
        if name.startswith("realised_budget_"):
            return self.rows.realised_budget(self._arm(name.removeprefix("realised_budget_")))
        if name == "smallest_seed_correlation_off_diagonal":
            return self.rows.seed_correlation(self._arm("dense"))
        return None

    def _texts(self) -> dict[str, str]:
        return {
            name: str(value.interval(self.confidence)) if isinstance(value, Quantity) else f"{value:.4g}"
            for name, value in self.names.items()
        }


def _known(value: float, otherwise: float = math.nan) -> float:
    """Return the value; an interval without ends reaches everywhere, so nothing follows from it."""
    return otherwise if math.isnan(value) else value
