"""Which measured claims have all their arms at which scale: those whose arms are all runs of that scale."""

from fnmatch import fnmatchcase
from pathlib import Path

from formerlab.plan.claim_arms import read_arms
from formerlab.plan.resolve import resolve_released, resolve_study
from formerlab.plan.sources import read_sources
from formerlab.report.claims.registry import Arm, read_claims


def missing_arms(root: Path, scale: str) -> dict[str, list[str]]:
    """Return, for every measured claim, the arms (with their item) that no run of the scale stands for.

    Of a claim whose items are cases of their own, those of the item that lacks the fewest.
    """
    claims = [claim for claim in read_claims().claims if claim.kind == "measured"]
    studies = sorted({claim.study for claim in claims})
    sources = read_sources(root, {"scale": scale, "studies": studies})
    both = resolve_study, resolve_released
    runs = {study: {run.name for resolve in both for run in resolve(study, sources)} for study in studies}
    mapped = read_arms(root, scale)
    found = {}
    for claim in claims:
        arms = mapped[claim.study].get(claim.id)
        by_item = [
            [
                f"{arm} of {item}" if item else arm
                for arm in claim.arms
                if arms is None or not _exists(arms.of(item).get(arm), runs[claim.study])
            ]
            for item in claim.criterion.for_each or (None,)
        ]
        found[claim.id] = (
            min(by_item, key=len) if claim.criterion.combine == "tested" else [arm for arms in by_item for arm in arms]
        )
    return found


def testable(root: Path, scales: tuple[str, ...]) -> dict[str, list[str]]:
    """Return for every measured claim the scales that may decide it and have all its arms."""
    missing = {scale: missing_arms(root, scale) for scale in scales}
    claims = [claim for claim in read_claims().claims if claim.kind == "measured"]
    return {
        claim.id: [scale for scale in scales if scale in claim.scales.judged and not missing[scale][claim.id]]
        for claim in claims
    }


def _exists(arm: Arm | None, runs: set[str]) -> bool:
    if arm is None:
        return False
    patterns = [pattern for pattern in (*arm.envelope, arm.best_of) if pattern is not None]
    if not all(any(fnmatchcase(run, pattern) for run in runs) for pattern in patterns):
        return False
    return arm.run is None or arm.run in runs
