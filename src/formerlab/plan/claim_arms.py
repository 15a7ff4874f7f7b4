"""Which runs stand for which arms: the key `claims` of the studies and, where it differs, of a scale."""

from pathlib import Path

from formerlab.errors import UserError, near_misses
from formerlab.plan.layers import parse
from formerlab.plan.schema import Study, StudyScale
from formerlab.plan.sources import read_tree, study_file
from formerlab.report.claims.registry import ClaimArms, read_claims


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
                if (claim := registered.get(name)) is None:
                    raise UserError(f"{file}: claims: no claim {name!r}{near_misses(name, list(registered))}")
                used = {arm for arms in (mapped.arms, *mapped.items.values()) for arm in arms}
                for key, given, known in (
                    ("items", mapped.items, claim.criterion.for_each),
                    ("arms", used, claim.arms),
                ):
                    if unknown := sorted(set(given) - set(known)):
                        has = ", ".join(known) or "none"
                        raise UserError(f"{file}: claims.{name}.{key}: no {unknown[0]!r}; the claim has {has}")
        found[path.stem] = arms | differing
    return found
