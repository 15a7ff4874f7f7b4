"""Which runs stand for which arms: the key `claims` of the studies and, where it differs, of a scale."""

from pathlib import Path

from formerlab.errors import UserError, near_misses
from formerlab.plan.layers import Tree
from formerlab.plan.read import parse
from formerlab.plan.schema import Study, StudyScale
from formerlab.report.claims.registry import Claim, ClaimArms, read_claims
from formerlab.yaml_files import read_yaml


def read_arms(root: Path, scale: str) -> dict[str, dict[str, ClaimArms]]:
    """Return the arms by study and claim. Raises UserError for claims, arms and items that are not registered."""
    found = {}
    place = f"workflow/scales/{scale}.yaml"
    at_scale = Tree(read_yaml(root, place), place)
    for path in sorted((root / "workflow" / "studies").glob("*.yaml")):
        own = f"workflow/studies/{path.name}"
        arms = parse(Study, Tree(read_yaml(root, own), own)).claims
        differing = parse(StudyScale, at_scale.part("studies", path.stem), f"studies.{path.stem}").claims
        for file, claims in ((own, arms), (place, differing)):
            _check(file, claims)
        found[path.stem] = arms | differing
    return found


def _check(place: str, arms: dict[str, ClaimArms]) -> None:
    registered = {claim.id: claim for claim in read_claims().claims}
    for name, mapped in arms.items():
        if name not in registered:
            raise UserError(f"{place}: claims: no claim {name!r}{near_misses(name, list(registered))}")
        _check_names(place, registered[name], mapped)


def _check_names(place: str, claim: Claim, mapped: ClaimArms) -> None:
    for item in mapped.items:
        if item not in claim.criterion.for_each:
            items = ", ".join(claim.criterion.for_each) or "none"
            raise UserError(f"{place}: claims.{claim.id}.items: no item {item!r}; the claim has {items}")
    for arms in (mapped.arms, *mapped.items.values()):
        for arm in arms:
            if arm not in claim.arms:
                raise UserError(f"{place}: claims.{claim.id}: no arm {arm!r}; the claim has {', '.join(claim.arms)}")
