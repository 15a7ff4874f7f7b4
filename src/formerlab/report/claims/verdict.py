"""Evaluate the criterion for each item of a claim, combine the outcomes, and apply Holm's correction to headline
claims.

simpleeval evaluates the expressions of a criterion: arithmetic, comparisons and `and`, `or`, `not` over named
quantities. An expression can only call the functions of protocol.functions.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from simpleeval import simple_eval

from formerlab.report.claims.conditions import ArmRuns, arm_runs, model_sizes, unmet_conditions
from formerlab.report.claims.quantity import Agreement, Combination, MissingRowsError, PairedMean, Quantity, RunMetric
from formerlab.report.claims.registry import Arm, Claim, ClaimArms, read_claims
from formerlab.report.claims.rows import WINDOW_METRICS, ClaimRows
from formerlab.results.read import Results
from formerlab.results.schema import EXACT
from formerlab.statistics import CONFIDENCE

Outcome = Literal["agrees", "contradicts", "cannot_tell", "not_tested", "holds", "fails"]
Numbers = Mapping[str, float]
"""Results of an exact check by name: `item/name` if they differ by item, `slope:cost:size` for slopes."""
MIN_SEEDS = 3
"""Smallest number of seeds for a verdict that uses value, diff, ratio, logratio or correlation (min_seeds)."""


class Item:
    """One item of a claim, or a claim without items, with its outcome."""

    def __init__(
        self, claim: Claim, rows: ClaimRows | None, numbers: Numbers, item: str | None, confidence: float = CONFIDENCE
    ) -> None:
        self.claim, self.item, self.confidence = claim, item, confidence
        self._rows, self._numbers = rows, numbers
        self.outcome: Outcome = "not_tested"
        self.reason = self.ran = ""
        self.quantities: dict[str, Any] = {}
        self.examples = self._seeds_of_pairs = 0
        self._fewest_seeds = math.inf
        self.few_documents = False

    @property
    def rows(self) -> ClaimRows:
        """The rows of the study. Raises MissingRowsError if the study maps no runs to the claim."""
        if self._rows is None:
            raise MissingRowsError("no run is planned for this claim")
        return self._rows

    @property
    def seeds(self) -> int:
        """The smallest number of seeds of the compared arms."""
        return self._seeds_of_pairs if math.isinf(self._fewest_seeds) else int(self._fewest_seeds)

    @cached_property
    def texts(self) -> dict[str, str]:
        """The mean and interval of each name of `let`, as text."""

        def text(value: Any) -> str:
            if not isinstance(value, Quantity):
                return f"{value:.4g}"
            spread = float(value.by_seed.std()) if isinstance(value, Combination) and len(value.by_seed) > 1 else 0.0
            return str(value.interval(self.confidence)) + (f" (SD {spread:.2g})" if spread > 1e-12 else "")

        return {name: text(value) for name, value in self.quantities.items()}

    def evaluate(self, scale: str) -> "Item":
        """Set the outcome and return self. The reason names missing rows and conditions that are not met."""
        claim, measured = self.claim, self.claim.kind == "measured"
        try:
            self._define()
            runs = arm_runs(claim, self.rows, self.item) if measured else {}
            reasons = self._not_tested(scale, runs) if measured else []
            holds = not reasons and self.evaluate_expression(claim.criterion.holds)
            fails = not reasons and not holds and self.evaluate_expression(claim.criterion.fails)
            if measured:
                models = model_sizes(runs)
                examples = self._described_examples(runs) if self.examples else ""
                unit = "repetition" if any(run.arm.measure for run in runs.values()) else "seed"
                self.ran = ", ".join(filter(None, [models, examples, f"{self.seeds} {unit}{'s' * (self.seeds != 1)}"]))
        except (MissingRowsError, ZeroDivisionError) as error:
            self.examples, self._seeds_of_pairs, self._fewest_seeds, self.few_documents = 0, 0, math.inf, False
            self.reason = "division by zero" if isinstance(error, ZeroDivisionError) else str(error)
            return self
        positive: Outcome = "agrees" if measured else "holds"
        negative: Outcome = "contradicts" if measured else "fails"
        self.outcome = "not_tested" if reasons else positive if holds else negative if fails else "cannot_tell"
        self.reason = "; ".join(reasons)
        return self

    def holds(self) -> bool:
        """Return whether `holds` of the criterion is true at the confidence level of this item."""
        self._define()
        return bool(self.evaluate_expression(self.claim.criterion.holds))

    def _not_tested(self, scale: str, runs: dict[str, ArmRuns]) -> list[str]:
        """Return the reasons why the existing rows do not test the claim."""
        claim, needed = self.claim, self.claim.criterion.requires
        reasons = [] if scale in claim.scales.judged else [f"scale {scale} does not test the claim: {claim.scales.why}"]
        reasons += unmet_conditions(claim, runs)
        if needed is not None and not self.evaluate_expression(needed):
            reasons.append(f"our runs do not meet the requirement: {claim.labels.get('requires', needed)}")
        few = self._fewest_seeds < MIN_SEEDS
        return reasons + ([f"number of seeds: {self.seeds} (needed: at least {MIN_SEEDS})"] if few else [])

    def _described_examples(self, runs: dict[str, ArmRuns]) -> str:
        """Return the number of examples as text; for windows of text, also the number of documents."""
        metric = self.claim.criterion.metric
        arm = next((run.arm for run in runs.values() if run.arm.policy), None)
        if arm is None or metric not in WINDOW_METRICS:
            return f"{self.examples} examples"
        windows, documents = self.rows.window_and_document_counts(arm, metric)
        return f"{windows} windows" + (f" of {documents} documents" if documents else "")

    def _define(self) -> None:
        """Evaluate the expressions of `let`."""
        for name, expression in self.claim.criterion.let.items():
            self.quantities[name] = value = self.evaluate_expression(expression)
            if isinstance(value, Combination):  # its interval uses the seeds that all arms share
                self._fewest_seeds = min(self._fewest_seeds, len(value.by_seed))

    def evaluate_expression(self, expression: str) -> Any:
        """Return the value of an expression over the names defined so far."""
        functions: dict[str, Any] = {
            "value": self._linear,
            "diff": lambda a, b, metric: self._linear(a, metric) - self._linear(b, metric),
            "logratio": lambda a, b, metric: self._linear(a, metric, ln=True) - self._linear(b, metric, ln=True),
            "ratio": self._ratio,
            "paired": self._paired,
            "correlation": self._agreement,
            "mean": lambda quantity: quantity.interval(self.confidence).mean,
            "lo": lambda quantity: quantity.ends(self.confidence)[0],
            "hi": lambda quantity: quantity.ends(self.confidence)[1],
            **dict.fromkeys(("number", "error"), self._number),
            "slope": lambda cost, size: self._number(f"slope:{cost}:{size}"),
            **{"log": math.log, "abs": abs, "min": min, "max": max},
        }
        return simple_eval(expression, names=self.quantities, functions=functions)

    def _arm(self, name: str) -> Arm:
        arms = self.rows.arms.for_item(self.item)
        if name not in arms:
            raise MissingRowsError(f"no run is planned for '{name.replace('_', ' ')}'")
        return arms[name]

    def _linear(self, arm: str, metric: str, *, ln: bool = False) -> Combination:
        combination = Combination({self.rows.run_metric(self._arm(arm), metric, logarithm=ln): 1.0})
        self._fewest_seeds = min(self._fewest_seeds, len(combination.by_seed))
        self.few_documents |= metric == "loss_nats" and not combination.documents()
        return combination

    def _ratio(self, a: str, b: str, metric: str) -> Combination:
        first, second = (self._linear(arm, metric).by_seed for arm in (a, b))
        shared = first.index.intersection(second.index)
        return Combination({RunMetric(f"{metric} {a} / {b}", (first / second).loc[shared]): 1.0})

    def _paired(self, a: str, b: str, metric: str) -> PairedMean:
        paired = self.rows.paired_mean(self._arm(a), self._arm(b), metric)
        self._seeds_of_pairs, self.examples = len(paired.by_seed), paired.examples
        return paired

    def _agreement(self, arm: str, _: str) -> Agreement:
        agreement = Agreement(self.rows.mixing_weights(self._arm(arm)))
        self._fewest_seeds = min(self._fewest_seeds, len(agreement.by_seed))
        return agreement

    def _number(self, name: str) -> float:
        """Return a number of the exact check, or the measured cache size of an arm from the rows."""
        for key in (f"{self.item}/{name}", name):
            if key in self._numbers:
                return self._numbers[key]
        if name.startswith("realised_budget_"):
            arm = self._arm(name.removeprefix("realised_budget_"))
            return self.rows.cache_size(arm, self.claim.criterion.metric)
        raise MissingRowsError(f"the exact check did not compute {name}")


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim at a scale."""

    claim: Claim
    scale: str
    outcome: Outcome
    items: tuple[Item, ...]
    runs: tuple[str, ...] = ()
    holm_p: float | None = None
    """p value after Holm's correction, for headline claims with a verdict."""

    @property
    def counted(self) -> tuple[Item, ...]:
        """The items that count for the verdict."""
        left_out = self.claim.criterion.combine == "tested"
        return tuple(item for item in self.items if not (left_out and item.outcome == "not_tested"))


def evaluate(claim: Claim, rows: ClaimRows | None, numbers: Numbers, scale: str) -> Verdict:
    """Return the verdict on one claim."""
    items = tuple(Item(claim, rows, numbers, item).evaluate(scale) for item in claim.criterion.for_each or (None,))
    outcome = combine_outcomes([item.outcome for item in items], claim.criterion.combine)
    return Verdict(claim, scale, outcome, items, tuple(sorted(rows.used_runs)) if rows else ())


def combine_outcomes(outcomes: Iterable[Outcome], combine: str | None) -> Outcome:
    """Return the first of contradicts, fails, not_tested, cannot_tell, agrees and holds that an item has.

    If `combine` is "tested", items that are not tested are skipped. Return `not_tested` if no item counts.
    """
    counted = [outcome for outcome in outcomes if combine != "tested" or outcome != "not_tested"]
    order: tuple[Outcome, ...] = ("contradicts", "fails", "not_tested", "cannot_tell", "agrees", "holds")
    return next((outcome for outcome in order if outcome in counted), "not_tested")


def p_value(verdict: Verdict, rows: ClaimRows | None) -> float:
    """Return the smallest level a, to 1e-4, such that all counted items hold with intervals at confidence 1 - a.

    Return 1 if there is no such level or an item is not tested.
    """

    def holds(error: float) -> bool:
        return all(Item(verdict.claim, rows, {}, item.item, 1 - error).holds() for item in verdict.counted)

    low, high = 0.0, 1 - 1e-4
    if any(item.outcome == "not_tested" for item in verdict.counted) or not holds(high):
        return 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the Holm-adjusted p values by name."""
    corrected, so_far = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        so_far = max(so_far, min(1.0, p * (len(p_values) - rank)))
        corrected[name] = so_far
    return corrected


def evaluate_all(
    claims: Iterable[Claim], scale: str, rows: Mapping[str, ClaimRows], numbers: Mapping[str, Numbers]
) -> list[Verdict]:
    """Return the verdicts on all claims. Headline claims with a verdict have a corrected p value.

    `rows` and `numbers` are by claim id.
    """
    evaluated = [evaluate(claim, rows.get(claim.id), numbers.get(claim.id, {}), scale) for claim in claims]
    family = [v for v in evaluated if v.claim.headline and v.outcome in ("agrees", "contradicts", "cannot_tell")]
    corrected = holm({verdict.claim.id: p_value(verdict, rows.get(verdict.claim.id)) for verdict in family})
    return [replace(verdict, holm_p=corrected.get(verdict.claim.id)) for verdict in evaluated]


def evaluate_results(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]]) -> list[Verdict]:
    """Return the verdicts at the scale of `results`, headline claims first; `arms` are by study and claim id."""
    cache = dict[Any, Any]()
    rows = {
        claim: ClaimRows(results, study, claim_arms, cache)
        for study, by_claim in arms.items()
        for claim, claim_arms in by_claim.items()
    }
    ordered = sorted(read_claims().claims, key=lambda claim: not claim.headline)
    return evaluate_all(ordered, results.scale, rows, exact_numbers(results))


def exact_numbers(results: Results) -> dict[str, Numbers]:
    """Return the results of the exact checks by claim."""
    groups = results.rows_of(EXACT, "").groupby("claim")
    return {str(claim): dict(zip(rows["name"], rows["value"].astype(float), strict=True)) for claim, rows in groups}
