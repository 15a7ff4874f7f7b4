"""Verdicts: what the judgements on a claim's items come to, and Holm's correction of the headline claims."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from formerlab.report.claims.evidence import Evidence, Numbers
from formerlab.report.claims.expression import evaluate
from formerlab.report.claims.quantity import Agreement, Level, Linear, MissingRowsError, Paired, Quantity
from formerlab.report.claims.regime import sizes, unmet
from formerlab.report.claims.registry import Claim, Protocol
from formerlab.report.claims.rows import Rows

Outcome = Literal["agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails"]
TESTED = ("agrees", "contradicts", "cannot_tell")
"""The verdicts of a measured claim that rows decide."""


@dataclass(frozen=True)
class ItemVerdict:
    """What the criterion says of one item, or of a claim without items."""

    item: str | None
    outcome: Outcome
    values: Mapping[str, str] = field(default_factory=dict)
    """What `let` names, as text: mean and interval."""
    reason: str = ""
    """Why it is not tested."""
    seeds: int = 0
    examples: int = 0
    runs: tuple[str, ...] = ()
    """The runs that it compares."""
    ran: str = ""
    """What was run, in words."""
    one_text: bool = False
    """Whether its intervals leave out the choice of the held-out text."""


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
        self.one_text = False

    def verdict(self, scale: str) -> ItemVerdict:
        """Return the verdict; what is missing or out of the regime is named in its reason."""
        claim, reasons = self.evidence.claim, []
        try:
            self._define()
            if claim.kind == "measured":
                reasons = self._not_tested(scale)
            holds = not reasons and self._evaluate(self.criterion.holds)
            fails = not reasons and not holds and self._evaluate(self.criterion.fails)
        except MissingRowsError as error:
            return ItemVerdict(self.item, "not_tested", self._texts(), str(error))
        except ZeroDivisionError:
            return ItemVerdict(self.item, "not_tested", self._texts(), "a number to divide by is zero")
        words: tuple[Outcome, Outcome] = ("holds", "fails") if claim.kind == "exact" else ("agrees", "contradicts")
        outcome: Outcome = "not_tested" if reasons else words[0] if holds else words[1] if fails else "cannot_tell"
        seeds = self.seeds_of_pairs if math.isinf(self.fewest_seeds) else int(self.fewest_seeds)
        runs = {run for arm in self.arms if (run := self.evidence.arm(self.item, arm).run) is not None}
        compared = tuple(sorted(runs))
        reason, ran = "; ".join(reasons), self._ran(seeds) if runs else ""
        return ItemVerdict(
            self.item, outcome, self._texts(), reason, seeds, self.examples, compared, ran, self.one_text
        )

    def holds(self) -> bool:
        """Say whether `holds` is true at this level of confidence."""
        self._define()
        return bool(self._evaluate(self.criterion.holds))

    def _define(self) -> None:
        for name, expression in self.criterion.let.items():
            self.names[name] = found = self._evaluate(expression)
            if isinstance(found, Linear):  # arms may have more than those they share, over which its interval goes
                self.fewest_seeds = min(self.fewest_seeds, len(found.seeds))

    def _not_tested(self, scale: str) -> list[str]:
        """Return why rows that are there decide nothing."""
        claim = self.evidence.claim
        reasons = [] if scale in claim.scales.judged else [f"scale {scale} decides nothing here: {claim.scales.why}"]
        reasons += unmet(self.evidence, self.item)
        if self.criterion.requires is not None and not self._evaluate(self.criterion.requires):
            reasons.append(f"requires {self.criterion.requires}")
        if self.fewest_seeds < self.min_seeds:
            reasons.append(f"{self.fewest_seeds} seeds of {self.min_seeds}")
        return reasons

    def _ran(self, seeds: int) -> str:
        """Return how large the compared models are, what they read, and how often."""
        units = f"{self.examples} examples" if self.examples else ""
        times = f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
        return ", ".join(filter(None, [sizes(self.evidence, self.item), units, times]))

    def _evaluate(self, expression: str) -> Any:
        return evaluate(expression, self.names, self._functions(), self.evidence.claim.id)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "value": lambda arm, metric: self._linear(self._level(arm, metric), metric),
            "diff": lambda a, b, metric: self._minus(a, b, metric),
            "ratio": self._ratio,
            "logratio": lambda a, b, metric: self._minus(a, b, metric, logarithm=True),
            "paired": self._paired,
            "correlation": self._agreement,
            "mean": lambda quantity: quantity.interval(self.confidence).mean,
            "lo": lambda quantity: quantity.ends(self.confidence)[0],
            "hi": lambda quantity: quantity.ends(self.confidence)[1],
            "number": self._number,
            "error": self._number,
            "slope": lambda cost, size: self._number(f"slope:{cost}:{size}"),
            "log": math.log,
            "abs": abs,
            "min": min,
            "max": max,
        }

    def _level(self, arm: str, metric: str, *, logarithm: bool = False) -> Level:
        self.arms.add(arm)
        level = self.evidence.level(self.item, arm, metric, logarithm=logarithm)
        self.fewest_seeds = min(self.fewest_seeds, len(level.values))
        return level

    def _linear(self, level: Level, metric: str) -> Linear:
        found = Linear({level.name: (1.0, level)})
        self.one_text |= metric == "loss_nats" and found.of_one_text
        return found

    def _minus(self, a: str, b: str, metric: str, *, logarithm: bool = False) -> Linear:
        first, second = (self._level(arm, metric, logarithm=logarithm) for arm in (a, b))
        return self._linear(first, metric) - self._linear(second, metric)

    def _ratio(self, a: str, b: str, metric: str) -> Linear:
        first, second = self._level(a, metric), self._level(b, metric)
        shared = first.values.keys() & second.values.keys()
        values = {seed: first.values[seed] / second.values[seed] for seed in sorted(shared)}
        return Linear({"ratio": (1.0, Level("ratio", values))})

    def _paired(self, a: str, b: str, metric: str) -> Paired:
        self.arms.update((a, b))
        paired = self.evidence.paired(self.item, a, b, metric)
        self.seeds_of_pairs, self.examples = len(paired.of_seeds), paired.examples
        return paired

    def _agreement(self, arm: str, metric: str) -> Agreement:
        self.arms.add(arm)
        found = self.evidence.agreement(self.item, arm, metric)
        self.fewest_seeds = min(self.fewest_seeds, len(found.of_seeds))
        return found

    def _number(self, name: str) -> float:
        return self.evidence.number(self.item, name)

    def _texts(self) -> dict[str, str]:
        return {name: self._text(value) for name, value in self.names.items()}

    def _text(self, value: Any) -> str:
        if not isinstance(value, Quantity):
            return f"{value:.4g}"
        own = value.deviation if isinstance(value, Linear) else math.nan
        return str(value.interval(self.confidence)) + (f" (SD {own:.2g})" if own > 1e-12 else "")


@dataclass(frozen=True)
class Verdict:
    """A claim at a scale."""

    claim: Claim
    scale: str
    outcome: Outcome
    items: tuple[ItemVerdict, ...]
    runs: tuple[str, ...] = ()
    holm_p: float | None = None
    """For headline claims with a verdict: p after Holm's correction."""

    @property
    def counted(self) -> tuple[ItemVerdict, ...]:
        """The items that the verdict is made of."""
        left_out = self.claim.criterion.combine == "tested"
        return tuple(item for item in self.items if not (left_out and item.outcome == "not_tested"))

    @property
    def seeds(self) -> int:
        """The most seeds of any item."""
        return max((item.seeds for item in self.items), default=0)

    @property
    def examples(self) -> int:
        """The most examples of any item; none where models are compared as a whole."""
        return max((item.examples for item in self.items), default=0)


def combined(outcomes: Iterable[Outcome], combine: str | None) -> Outcome:
    """Return what the verdicts of items come to: by `all` every item is needed, by `tested` those that are tested."""
    found = [outcome for outcome in outcomes if combine != "tested" or outcome != "not_tested"]
    order: tuple[Outcome, ...] = ("contradicts", "fails", "not_tested", "cannot_tell", "agrees", "holds")
    return next((outcome for outcome in order if outcome in found), "not_tested")


def judge(evidence: Evidence, scale: str) -> Verdict:
    """Return the verdict on one claim."""
    claim = evidence.claim
    items = tuple(Judgement(evidence, item).verdict(scale) for item in claim.criterion.for_each or (None,))
    outcome = combined((item.outcome for item in items), claim.criterion.combine)
    return Verdict(claim, scale, outcome, items, evidence.runs)


def p_value(evidence: Evidence, verdict: Verdict) -> float:
    """Return the smallest a, to 1e-4, at which all items that count hold with every interval at level 1 - a; else 1."""

    def holds(error: float) -> bool:
        return all(Judgement(evidence, item.item, 1 - error).holds() for item in verdict.counted)

    low, high = 0.0, 1 - 1e-4
    if not holds(high):
        return 1.0
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
    """Return the verdicts on all claims, headline claims that have one with their corrected p.

    `withdrawn` gives the reason why rows that exist are no evidence, by claim: those are not tested, without numbers.
    """
    verdicts, p_values = [], {}
    for claim in claims:
        if claim.id in withdrawn:
            item = ItemVerdict(None, "not_tested", reason=f"withdrawn: {withdrawn[claim.id]}")
            verdicts.append(Verdict(claim, scale, "not_tested", (item,)))
            continue
        evidence = Evidence(claim, protocol, rows_of(claim), numbers_of(claim))
        verdicts.append(judge(evidence, scale))
        if claim.headline and verdicts[-1].outcome in TESTED:
            p_values[claim.id] = p_value(evidence, verdicts[-1])
    corrected = holm(p_values)
    return [replace(verdict, holm_p=corrected.get(verdict.claim.id)) for verdict in verdicts]
