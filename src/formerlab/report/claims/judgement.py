"""The criterion of a claim on one item: its expressions, and what they ask for, each found once.

The language of criteria is arithmetic, comparisons and `and`, `or`, `not` over named quantities, by simpleeval. Nothing
of Python can be reached from it: names, functions and operators are those listed, and attributes have no form.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from formerlab.errors import UserError
from formerlab.report.claims.quantity import Agreement, Level, Linear, MissingRowsError, Paired, Quantity
from formerlab.report.claims.registry import Arm, Claim, Protocol
from formerlab.report.claims.rows import Found, Rows, once

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.USub: operator.neg, ast.Not: operator.not_},
}
FORMS = ("Expr", "Constant", "Name", "BinOp", "UnaryOp", "BoolOp", "Compare", "Call")

Numbers = Mapping[str, float]
"""Results of an exact check: name to number, `item/name` where they differ by item, `slope:cost:size` for slopes."""


def evaluate(expression: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]], claim: str) -> Any:
    """Return the value of an expression. Raises UserError, beginning with the claim, for what it lacks."""
    language = SimpleEval(operators=OPERATORS, functions=dict(functions), names=dict(names))
    language.nodes = {form: visit for form, visit in language.nodes.items() if form.__name__ in FORMS}
    try:
        return language.eval(expression)
    except (InvalidExpression, SyntaxError, TypeError) as error:
        raise UserError(f"{claim}: {expression!r}: {error}; see protocol.functions in claims.yaml") from None


@dataclass(frozen=True)
class Evidence:
    """Rows and numbers of one claim at one scale; the judgements on its items, at any confidence, share it."""

    claim: Claim
    protocol: Protocol
    rows: Rows | None
    """The rows of the study; nothing where it maps no runs to the claim."""
    numbers: Numbers
    found: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """What was asked for so far."""


class Judgement:
    """The criterion of a claim on one item."""

    def __init__(self, evidence: Evidence, item: str | None = None, confidence: float | None = None) -> None:
        self.evidence, self.item = evidence, item
        self.claim, self.protocol = evidence.claim, evidence.protocol
        self.confidence = self.protocol.confidence if confidence is None else confidence
        self.fewest_seeds = math.inf
        self.seeds_of_pairs = self.examples = 0
        self.names: dict[str, Any] = {}
        self.arms: set[str] = set()
        self.one_text = False

    @property
    def rows(self) -> Rows:
        """The rows of the study. Raises MissingRowsError where it maps no runs to the claim."""
        if self.evidence.rows is None:
            raise MissingRowsError("the study maps no runs to this claim")
        return self.evidence.rows

    @property
    def measured(self) -> str:
        """The metric by which policies are compared."""
        return next(iter(sorted(self.claim.criterion.metrics)), "accuracy")

    def holds(self) -> bool:
        """Say whether `holds` is true at this level of confidence."""
        self.define()
        return bool(self.evaluate(self.claim.criterion.holds))

    def define(self) -> None:
        """Find all that `let` names."""
        for name, expression in self.claim.criterion.let.items():
            self.names[name] = found = self.evaluate(expression)
            if isinstance(found, Linear):  # arms may have more than those they share, over which its interval goes
                self.fewest_seeds = min(self.fewest_seeds, len(found.seeds))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression over what is defined."""
        functions: dict[str, Callable[..., Any]] = {
            "value": lambda arm, metric: self._linear(self._level(arm, metric), metric),
            "diff": self._minus,
            "ratio": self._ratio,
            "logratio": lambda a, b, metric: self._minus(a, b, metric, logarithm=True),
            "paired": self._paired,
            "correlation": self._agreement,
            "mean": lambda quantity: quantity.interval(self.confidence).mean,
            "lo": lambda quantity: quantity.ends(self.confidence)[0],
            "hi": lambda quantity: quantity.ends(self.confidence)[1],
            **dict.fromkeys(("number", "error"), self._number),
            "slope": lambda cost, size: self._number(f"slope:{cost}:{size}"),
            **{"log": math.log, "abs": abs, "min": min, "max": max},
        }
        return evaluate(expression, self.names, functions, self.claim.id)

    def texts(self) -> dict[str, str]:
        """Return what `let` names as text: mean and interval."""

        def text(value: Any) -> str:
            if not isinstance(value, Quantity):
                return f"{value:.4g}"
            own = value.deviation if isinstance(value, Linear) else math.nan
            return str(value.interval(self.confidence)) + (f" (SD {own:.2g})" if own > 1e-12 else "")

        return {name: text(value) for name, value in self.names.items()}

    def arm(self, name: str) -> Arm:
        """Return the arm of this name."""
        if name not in self.claim.arms:
            raise UserError(f"{self.claim.id}: unknown arm {name!r}; there are {', '.join(self.claim.arms)}")
        arms = self.rows.arms.of(self.item)
        if name not in arms:
            raise MissingRowsError(f"the study maps no run to arm {name}" + (f" of {self.item}" if self.item else ""))
        return arms[name]

    def level(self, name: str, metric: str, *, logarithm: bool = False) -> Level:
        """Return one number per seed. Raises MissingRowsError where the arm has no rows."""
        arm = self.arm(name)
        self._check(metric)
        return self._once(lambda: self.rows.level(arm, metric, logarithm=logarithm), arm, metric, logarithm)

    def over_chance(self, arm: Arm, suite: str | None = None) -> float:
        """Return the lower end of accuracy minus guessing."""

        def lower_end() -> float:
            sample = self.rows.sample(arm, "accuracy", above_chance=True, suite=suite)
            return sample.estimate(self.protocol.bootstrap_resamples).ends(self.protocol.confidence)[0]

        return self._once(lower_end, arm, suite, "chance")

    def _level(self, arm: str, metric: str, *, logarithm: bool = False) -> Level:
        self.arms.add(arm)
        level = self.level(arm, metric, logarithm=logarithm)
        self.fewest_seeds = min(self.fewest_seeds, len(level.values))
        return level

    def _linear(self, level: Level, metric: str) -> Linear:
        found = Linear({level.name: (1.0, level)})
        self.one_text |= metric == "loss_nats" and found.of_one_text
        return found

    def _minus(self, a: str, b: str, metric: str, *, logarithm: bool = False) -> Linear:
        first, second = (self._linear(self._level(arm, metric, logarithm=logarithm), metric) for arm in (a, b))
        return first - second

    def _ratio(self, a: str, b: str, metric: str) -> Linear:
        first, second = self._level(a, metric), self._level(b, metric)
        shared = first.values.keys() & second.values.keys()
        values = {seed: first.values[seed] / second.values[seed] for seed in sorted(shared)}
        return Linear({"ratio": (1.0, Level("ratio", values))})

    def _paired(self, a: str, b: str, metric: str) -> Paired:
        self.arms.update((a, b))
        self._check(metric)
        paired = self._difference(a, b, metric)
        self.seeds_of_pairs, self.examples = len(paired.of_seeds), paired.examples
        return paired

    def _difference(self, a: str, b: str, metric: str) -> Paired:
        """Return the mean difference over the same examples; a constant is compared with rows."""
        left, right = self.arm(a), self.arm(b)
        if left.constant is not None:
            return -self._difference(b, a, metric)
        resamples = self.protocol.bootstrap_resamples
        of_left = self._once(lambda: self.rows.sample(left, metric), left, metric, "sample")
        if right.constant is not None:
            return self._once(lambda: of_left.estimate(resamples), left, metric, of_left.seeds) - right.constant
        of_right = self._once(lambda: self.rows.sample(right, metric), right, metric, "sample")
        if of_left.names != of_right.names or type(of_left) is not type(of_right):
            raise MissingRowsError(f"{a} and {b}: the arms have rows of different examples")
        if not (seeds := tuple(seed for seed in of_left.seeds if seed in of_right.seeds)):
            raise MissingRowsError(f"{a} and {b}: the arms have no seed in common")
        first = self._once(lambda: of_left.of(seeds).estimate(resamples), left, metric, seeds)
        return first - self._once(lambda: of_right.of(seeds).estimate(resamples), right, metric, seeds)

    def _agreement(self, name: str, metric: str) -> Agreement:
        self.arms.add(name)
        self._check(metric)
        arm = self.arm(name)
        found = self._once(lambda: self.rows.agreement(arm), arm, metric)
        self.fewest_seeds = min(self.fewest_seeds, len(found.of_seeds))
        return found

    def _number(self, name: str) -> float:
        """Return a number of the exact check, or one that is counted in the rows."""
        for key in (f"{self.item}/{name}", name):
            if key in self.evidence.numbers:
                return self.evidence.numbers[key]
        if name.startswith("realised_budget_"):
            return self.rows.realised_budget(self.arm(name.removeprefix("realised_budget_")), self.measured)
        raise MissingRowsError(f"no check has given {name}")

    def _check(self, metric: str) -> None:
        if metric not in self.protocol.metrics:
            raise UserError(f"{self.claim.id}: unknown metric {metric!r}; there are {', '.join(self.protocol.metrics)}")

    def _once(self, find: Callable[[], Found], *key: Any) -> Found:
        return once(self.evidence.found, key, find)
