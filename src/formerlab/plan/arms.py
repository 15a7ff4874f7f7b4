"""Read the runs that are the arms of the registered claims. This module does not import torch."""

from pathlib import Path

from formerlab.errors import UserError, near_misses
from formerlab.plan.merging import Tree, parse
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.spec import Spec
from formerlab.yaml_files import read_yaml


class _Claims(Spec):
    """The key `claims` of a study, or of the settings of a study at a scale."""

    claims: dict[str, ClaimArms] = {}


def _read(root: Path, file: str) -> Tree:
    return Tree(read_yaml(root, file), file)


def _claims(tree: Tree, subject: str = "") -> dict[str, ClaimArms]:
    return parse(_Claims, tree.select({"claims"}), subject).claims


def read_arms(root: Path, scale: str) -> dict[str, dict[str, ClaimArms]]:
    """Return the runs of each arm, by study and claim (key `claims` of the study and scale files)."""
    arms_by_study = {}
    registered = {claim.id: claim for claim in read_claims().claims}
    scale_tree = _read(root, f"workflow/scales/{scale}.yaml")
    for path in sorted((root / "workflow" / "studies").glob("*.yaml")):
        study = _read(root, f"workflow/studies/{path.name}")
        arms = _claims(study)
        scale_arms = _claims(scale_tree.subtree("studies", path.stem), f"studies.{path.stem}")
        for file, claims in ((study.file, arms), (scale_tree.file, scale_arms)):
            for name, mapped in claims.items():
                if (claim := registered.get(name)) is None:
                    raise UserError(f"{file}: claims: no claim {name!r}{near_misses(name, list(registered))}")
                arm_names = {arm for arms in (mapped.arms, *mapped.items.values()) for arm in arms}
                for key, keys, allowed in (
                    ("items", mapped.items, claim.criterion.for_each),
                    ("arms", arm_names, claim.arms),
                ):
                    if unknown := sorted(set(keys) - set(allowed)):
                        valid = ", ".join(allowed) or "none"
                        raise UserError(f"{file}: claims.{name}.{key}: no {unknown[0]!r}; the claim has {valid}")
        arms_by_study[path.stem] = arms | scale_arms
    return arms_by_study
