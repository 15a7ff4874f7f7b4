"""claims.csv: the verdicts on all claims at one scale."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pandas import DataFrame

from formerlab.errors import UserError, near_misses
from formerlab.report.claims.registry import Claim, ClaimArms, read_claims
from formerlab.report.claims.rows import Rows
from formerlab.report.claims.verdict import ItemVerdict, Outcome, Verdict, judge_all
from formerlab.results.read import Results
from formerlab.results.schema import WITHDRAWN
from formerlab.results.write import write_rows
from formerlab.yaml_files import read_yaml

EXACT = "exact.csv"
"""The numbers of the exact checks: claim, name, value."""
NO_ITEM = ItemVerdict(None, "not_tested")


def verdicts(results: Results, arms: Mapping[str, Mapping[str, ClaimArms]]) -> list[Verdict]:
    """Return the verdicts at the scale of `results`, headlines first; `arms` are what each study maps, by claim."""
    registry, shared = read_claims(), dict[Any, Any]()

    def rows_of(claim: Claim) -> Rows | None:
        mapped = arms.get(claim.study, {}).get(claim.id)
        return None if mapped is None else Rows(results, claim.study, mapped, shared)

    numbers = {
        str(claim): dict(zip(group["name"], group["value"].astype(float), strict=True))
        for claim, group in results.rows_of_study(EXACT, "").groupby("claim")
    }
    ordered = sorted(registry.claims, key=lambda claim: not claim.headline)
    return judge_all(ordered, registry.protocol, results.scale, rows_of, numbers, read_withdrawn(results.root))


def read_withdrawn(root: Path) -> dict[str, str]:
    """Return why rows of a scale are no evidence, by claim: what the file WITHDRAWN of each study says.

    It lies beside the rows, so an export that replaces them removes it. Raises UserError for claims that are not
    registered and for a missing reason.
    """
    found: dict[str, str] = {}
    registered = [claim.id for claim in read_claims().claims]
    for path in sorted(root.glob(f"*/{WITHDRAWN}")):
        for claim, reason in read_yaml(path.parent, path.name).items():
            if claim not in registered:
                raise UserError(f"{path}: no claim {claim!r}{near_misses(str(claim), registered)}")
            if not isinstance(reason, str) or not reason.strip():
                raise UserError(f"{path}: {claim}: got {reason!r}; write why its rows are no evidence")
            found[claim] = " ".join(reason.split())
    return found


def frame(found: list[Verdict]) -> DataFrame:
    """Return a row per claim; a claim with items has its joint verdict first and a row per item below."""
    rows = []
    for verdict in found:
        single = len(verdict.items) == 1
        rows.append(_row(verdict, verdict.outcome, verdict.items[0] if single else NO_ITEM))
        rows += [] if single else [_row(verdict, item.outcome, item) for item in verdict.items]
    return DataFrame(rows)


def _row(verdict: Verdict, outcome: Outcome, item: ItemVerdict) -> dict[str, object]:
    claim = verdict.claim
    return {
        "claim": claim.id,
        "kind": claim.kind,
        "headline": claim.headline,
        "item": item.item,
        "outcome": outcome,
        "verdict": worded(outcome, verdict),
        "changed": read_claims().changed(claim),
        "ours": ours(item),
        "published": claim.published,
        "ran": item.ran,
        "seeds": item.seeds or None,
        "examples": item.examples or None,
        "reason": item.reason,
        "holm_p": verdict.holm_p,
        "runs": ", ".join(verdict.runs),
        "statement": claim.statement,
        "source": claim.source,
        "traps": " | ".join(claim.traps),
    }


def ours(item: ItemVerdict) -> str:
    """Return the numbers of an item."""
    return "; ".join(f"{name} = {text}" for name, text in item.values.items())


def worded(outcome: str, verdict: Verdict) -> str:
    """Return the verdict as a reader sees it, with the scale or the model that it was found at."""
    word = outcome.replace("_", " ")
    if outcome == "not_tested" or verdict.claim.kind == "exact":
        return word
    if verdict.scale == "pretrained":
        return f"{word} for {', '.join(verdict.runs)}"
    one = ", this model alone" if verdict.examples and verdict.seeds == 1 else ""
    one += ", this held-out text alone" if any(item.one_text for item in verdict.counted) else ""
    tested = [item.item for item in verdict.counted if item.item]
    cases = f" ({', '.join(tested)})" if verdict.claim.criterion.combine == "tested" else ""
    return f"{word} at {verdict.scale}{cases}{one}"


def write_exact(path: Path) -> None:
    """Run the checks of the exact claims and write their numbers."""
    from formerlab.evaluation.exact import CHECKS

    rows = [(claim, name, value) for claim, check in CHECKS.items() for name, value in check().items()]
    write_rows(path, ("claim", "name", "value"), rows)
