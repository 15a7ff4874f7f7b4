"""Which runs stand for which arms: the key `claims` of the studies and, where it differs, of a scale."""

from fnmatch import fnmatchcase
from pathlib import Path

from formerlab.errors import UserError, near_misses
from formerlab.plan.read import parse
from formerlab.plan.resolve import resolve_released, resolve_study
from formerlab.plan.schema import Study, StudyScale
from formerlab.plan.sources import read_sources, read_tree, study_file
from formerlab.report.claims.registry import Arm, Claim, ClaimArms, read_claims


def read_arms(root: Path, scale: str) -> dict[str, dict[str, ClaimArms]]:
    """Return the arms by study and claim. Raises UserError for claims, arms and items that are not registered."""
    found = {}
    registered = {claim.id: claim for claim in read_claims().claims}
    at_scale = read_tree(root, f"workflow/scales/{scale}.yaml")
    for path in sorted((root / "workflow" / "studies").glob("*.yaml")):
        own = read_tree(root, study_file(path.stem))
        arms = parse(Study, own).claims
        differing = parse(StudyScale, at_scale.part("studies", path.stem), f"studies.{path.stem}").claims
        for file, claims in ((own.file, arms), (at_scale.file, differing)):
            for name, mapped in claims.items():
                if name not in registered:
                    raise UserError(f"{file}: claims: no claim {name!r}{near_misses(name, list(registered))}")
                _check_names(file, registered[name], mapped)
        found[path.stem] = arms | differing
    return found


def _check_names(file: str, claim: Claim, mapped: ClaimArms) -> None:
    arms = [arm for arms in (mapped.arms, *mapped.items.values()) for arm in arms]
    for key, what, names, known in (
        (".items", "item", list(mapped.items), claim.criterion.for_each),
        ("", "arm", arms, claim.arms),
    ):
        for name in (name for name in names if name not in known):
            has = ", ".join(known) or "none"
            raise UserError(f"{file}: claims.{claim.id}{key}: no {what} {name!r}; the claim has {has}")


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
