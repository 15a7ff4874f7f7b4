"""Verdicts: what the judgements on a claim's items come to, and Holm's correction of the headline claims."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from formerlab.report.claims.judgement import Evidence, Judgement, Numbers
from formerlab.report.claims.quantity import MissingRowsError
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


def judge(evidence: Evidence, scale: str) -> Verdict:
    """Return the verdict on one claim."""
    claim = evidence.claim
    items = tuple(_of_item(Judgement(evidence, item), scale) for item in claim.criterion.for_each or (None,))
    outcome = combined((item.outcome for item in items), claim.criterion.combine)
    return Verdict(claim, scale, outcome, items, tuple(sorted(evidence.rows.used)) if evidence.rows else ())


def _of_item(found: Judgement, scale: str) -> ItemVerdict:
    """Return the verdict on an item; what is missing or out of the regime is named in its reason."""
    claim, reasons = found.claim, []
    try:
        found.define()
        if claim.kind == "measured":
            reasons = _not_tested(found, scale)
        holds = not reasons and found.evaluate(claim.criterion.holds)
        fails = not reasons and not holds and found.evaluate(claim.criterion.fails)
    except MissingRowsError as error:
        return ItemVerdict(found.item, "not_tested", found.texts(), str(error))
    except ZeroDivisionError:
        return ItemVerdict(found.item, "not_tested", found.texts(), "a number to divide by is zero")
    words: tuple[Outcome, Outcome] = ("holds", "fails") if claim.kind == "exact" else ("agrees", "contradicts")
    outcome: Outcome = "not_tested" if reasons else words[0] if holds else words[1] if fails else "cannot_tell"
    seeds = found.seeds_of_pairs if math.isinf(found.fewest_seeds) else int(found.fewest_seeds)
    runs = {run for arm in found.arms if (run := found.arm(arm).run) is not None}
    times = f"{found.examples} examples" * bool(found.examples), f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    return ItemVerdict(
        found.item,
        outcome,
        values=found.texts(),
        reason="; ".join(reasons),
        seeds=seeds,
        examples=found.examples,
        runs=tuple(sorted(runs)),
        ran=", ".join(filter(None, [sizes(found), *times])) if runs else "",
        one_text=found.one_text,
    )


def _not_tested(found: Judgement, scale: str) -> list[str]:
    """Return why rows that are there decide nothing."""
    claim, needed, least = found.claim, found.claim.criterion.requires, found.protocol.min_seeds
    reasons = [] if scale in claim.scales.judged else [f"scale {scale} decides nothing here: {claim.scales.why}"]
    reasons += unmet(found)
    if needed is not None and not found.evaluate(needed):
        reasons.append(f"requires {needed}")
    return reasons + ([f"{found.fewest_seeds} seeds of {least}"] if found.fewest_seeds < least else [])


def combined(outcomes: Iterable[Outcome], combine: str | None) -> Outcome:
    """Return what the verdicts of items come to: by `all` every item is needed, by `tested` those that are tested."""
    found = [outcome for outcome in outcomes if combine != "tested" or outcome != "not_tested"]
    order: tuple[Outcome, ...] = ("contradicts", "fails", "not_tested", "cannot_tell", "agrees", "holds")
    return next((outcome for outcome in order if outcome in found), "not_tested")


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
    numbers: Mapping[str, Numbers],
    withdrawn: Mapping[str, str],
) -> list[Verdict]:
    """Return the verdicts on all claims, headline claims that have one with their corrected p.

    `numbers` are those of the exact checks, by claim. `withdrawn` gives the reason why rows that exist are no evidence,
    by claim: those are not tested, without numbers.
    """
    verdicts, p_values = [], {}
    for claim in claims:
        if claim.id in withdrawn:
            item = ItemVerdict(None, "not_tested", reason=f"withdrawn: {withdrawn[claim.id]}")
            verdicts.append(Verdict(claim, scale, "not_tested", (item,)))
            continue
        evidence = Evidence(claim, protocol, rows_of(claim), numbers.get(claim.id, {}))
        verdicts.append(judge(evidence, scale))
        if claim.headline and verdicts[-1].outcome in TESTED:
            p_values[claim.id] = p_value(evidence, verdicts[-1])
    corrected = holm(p_values)
    return [replace(verdict, holm_p=corrected.get(verdict.claim.id)) for verdict in verdicts]
