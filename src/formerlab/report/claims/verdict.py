"""Verdicts: what the judgements on a claim's items come to, and Holm's correction of the headline claims."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from formerlab.report.claims.evidence import Evidence, Numbers
from formerlab.report.claims.expression import evaluate
from formerlab.report.claims.quantity import MissingRowsError, NoValueError, Paired, Quantity, Seeds
from formerlab.report.claims.registry import Claim, Protocol
from formerlab.report.claims.rows import Rows

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
    runs: tuple[str, ...] = ()
    """The runs that it compares."""


class Judgement:
    """The criterion of a claim on one item."""

    def __init__(self, evidence: Evidence, item: str | None, confidence: float | None = None) -> None:
        self.evidence, self.item = evidence, item
        self.criterion, self.min_seeds = evidence.claim.criterion, evidence.protocol.min_seeds
        self.confidence = evidence.protocol.confidence if confidence is None else confidence
        self.fewest_seeds = math.inf
        self.seeds_of_pairs = self.examples = 0
        self.names: dict[str, Any] = {}
        self.arms: set[str] = set()

    def verdict(self) -> ItemVerdict:
        """Return the verdict; a missing arm is named in its reason."""
        try:
            for name, expression in self.criterion.let.items():
                self.names[name] = found = self._evaluate(expression)
                if isinstance(found, Seeds):  # arms may have more than those they share, over which its interval goes
                    self.fewest_seeds = min(self.fewest_seeds, len(found.values))
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
        seeds = self.seeds_of_pairs if math.isinf(self.fewest_seeds) else int(self.fewest_seeds)
        runs = {run for arm in self.arms if (run := self.evidence.run(self.item, arm)) is not None}
        return ItemVerdict(self.item, outcome, self._texts(), reason, seeds, self.examples, tuple(sorted(runs)))

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
        self.arms.add(arm)
        seeds = self.evidence.value(self.item, arm, metric)
        self.fewest_seeds = min(self.fewest_seeds, len(seeds.values))
        return seeds

    def _ratio(self, a: str, b: str, metric: str) -> Seeds:
        return self._value(a, metric) / self._value(b, metric)

    def _paired(self, a: str, b: str, metric: str) -> Paired:
        self.arms.update((a, b))
        paired = self.evidence.paired(self.item, a, b, metric)
        self.seeds_of_pairs, self.examples = len(paired.of_seeds), paired.examples
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


Standing = Literal["judged", "provisional", "indicative"]

WORST: tuple[Outcome, ...] = ("fails", "not judged", "undecided", "holds")
"""How items combine: the first of these that any item has."""


@dataclass(frozen=True)
class Verdict:
    """A claim at a scale."""

    claim: Claim
    scale: str
    outcome: Outcome
    standing: Standing
    """judged: the claim names the scale; provisional: overnight, where it does not; indicative: shown, not judged."""
    items: tuple[ItemVerdict, ...]
    runs: tuple[str, ...] = ()
    holm_p: float | None = None
    """For headline claims with rows: p after Holm's correction."""

    @property
    def seeds(self) -> int:
        """The most seeds of any item."""
        return max((item.seeds for item in self.items), default=0)

    @property
    def examples(self) -> int:
        """The most examples of any item; none where models are compared as a whole."""
        return max((item.examples for item in self.items), default=0)


def judge(evidence: Evidence, scale: str) -> Verdict:
    """Return the verdict on one claim."""
    claim = evidence.claim
    items = tuple(_judgements(evidence))
    outcome = next(outcome for outcome in WORST if any(item.outcome == outcome for item in items))
    return Verdict(claim, scale, outcome, standing(claim, scale), items, evidence.runs)


def p_value(evidence: Evidence) -> float | None:
    """Return the smallest a for which the claim holds when every interval is taken at level 1 - a, to 1e-4.

    None where there are no rows; 1 where it holds at no level.
    """

    def holds(error: float) -> bool | None:
        outcomes = [item.outcome for item in _judgements(evidence, 1 - error)]
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
    withdrawn: Mapping[str, str],
) -> list[Verdict]:
    """Return the verdicts on all claims, headline claims with their corrected p.

    `withdrawn` gives the reason why rows that exist are no evidence, by claim: those get no verdict, no numbers, no p.
    """
    verdicts, p_values = [], {}
    for claim in claims:
        if claim.id in withdrawn:
            item = ItemVerdict(None, "withdrawn", reason=withdrawn[claim.id])
            verdicts.append(Verdict(claim, scale, "withdrawn", standing(claim, scale), (item,)))
            continue
        evidence = Evidence(claim, protocol, rows_of(claim), numbers_of(claim))
        verdicts.append(judge(evidence, scale))
        if claim.headline and (p := p_value(evidence)) is not None:
            p_values[claim.id] = p
    corrected = holm(p_values)
    return [replace(verdict, holm_p=corrected.get(verdict.claim.id)) for verdict in verdicts]


def _judgements(evidence: Evidence, confidence: float | None = None) -> list[ItemVerdict]:
    items = evidence.claim.criterion.for_each or (None,)
    return [Judgement(evidence, item, confidence).verdict() for item in items]


def standing(claim: Claim, scale: str) -> Standing:
    """Return how a scale counts; arithmetic counts everywhere.

    Where a claim does not name overnight, it is judged there if it is at laptop, else provisional
    (protocol.scale_overnight).
    """
    if claim.kind == "exact" or scale in claim.scales.judged:
        return "judged"
    if scale == "overnight" and scale not in claim.scales.indicative:
        return "judged" if "laptop" in claim.scales.judged else "provisional"
    return "indicative"
