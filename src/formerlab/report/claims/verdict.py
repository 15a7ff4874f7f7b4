"""Verdicts: what the judgements on a claim's items come to, and Holm's correction of the headline claims."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from formerlab.report.claims.evidence import Evidence, Numbers
from formerlab.report.claims.judgement import ItemVerdict, Judgement, Outcome
from formerlab.report.claims.registry import Claim, Protocol
from formerlab.report.claims.rows import Rows

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
