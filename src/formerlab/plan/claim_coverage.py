"""Which claims can have a verdict at which scale: those whose arms are all runs of that scale."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from formerlab.plan.claim_arms import read_arms
from formerlab.plan.resolve import resolve_released, resolve_study
from formerlab.plan.sources import read_sources
from formerlab.report.claims.arms import Arm
from formerlab.report.claims.registry import Claim, read_claims
from formerlab.report.claims.verdict import standing

SCALES = ("smoke", "laptop", "pretrained", "overnight", "workstation", "paper")


def missing_arms(root: Path, scale: str) -> dict[str, list[str]]:
    """Return, for every measured claim, the arms (with their item) that no run of the scale stands for."""
    claims = [claim for claim in read_claims().claims if claim.kind == "measured"]
    studies = sorted({claim.study for claim in claims})
    sources = read_sources(root, {"scale": scale, "studies": studies})
    both = resolve_study, resolve_released
    runs = {study: {run.name for resolve in both for run in resolve(study, sources)} for study in studies}
    mapped = read_arms(root, scale)
    found = {}
    for claim in claims:
        arms = mapped[claim.study].get(claim.id)
        items = claim.criterion.for_each or (None,)
        missing = [
            f"{arm} of {item}" if item else arm
            for item in items
            for arm in claim.arms
            if arms is None or not _exists(arms.of(item).get(arm), runs[claim.study])
        ]
        found[claim.id] = missing
    return found


def _exists(arm: Arm | None, runs: set[str]) -> bool:
    if arm is None:
        return False
    patterns = [pattern for pattern in (*arm.envelope, arm.best_of) if pattern is not None]
    if not all(any(fnmatchcase(run, pattern) for run in runs) for pattern in patterns):
        return False
    return arm.run is None or arm.run in runs


def coverage_block(root: Path) -> str:
    """Return a table of measured claims and scales as Markdown, and why cells are empty."""
    missing = {scale: missing_arms(root, scale) for scale in SCALES}
    claims = [claim for claim in read_claims().claims if claim.kind == "measured"]
    lines = ["| claim | " + " | ".join(SCALES) + " |", "|---|" + "---|" * len(SCALES)]
    for claim in claims:
        cells = ["" if missing[scale][claim.id] else standing(claim, scale) for scale in SCALES]
        lines.append(f"| {claim.id} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_reasons(claims, missing)])


def _reasons(claims: list[Claim], missing: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    """Say of every claim with an empty cell which arms the scales lack."""
    yield "An empty cell: the scale trains no run for an arm. Those are"
    yield ""
    for claim in claims:
        scales: dict[str, list[str]] = {}
        for scale in SCALES:
            if lacking := missing[scale][claim.id]:
                whole = len(lacking) == len(claim.arms) * max(1, len(claim.criterion.for_each))
                scales.setdefault("all arms" if whole else ", ".join(lacking), []).append(scale)
        if scales:
            yield f"- {claim.id}: " + "; ".join(f"{arms} ({', '.join(places)})" for arms, places in scales.items())
