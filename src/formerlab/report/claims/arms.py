"""Read the runs that are the arms of the registered claims."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from formerlab.errors import UserError, near_misses
from formerlab.report.claims.registry import ClaimArms, read_claims
from formerlab.yaml_files import read_scale, read_yaml


def read_arms(root: Path, scale: str) -> dict[str, dict[str, ClaimArms]]:
    """Return the runs of each arm, by study and claim (key `claims` of the study and scale files).

    A scale without a file adds no arms. Raises UserError for an unregistered claim, arm or item.
    """
    studies, arms_by_study = read_scale(root, scale).get("studies") or {}, {}
    for path in sorted((root / "workflow" / "studies").glob("*.yaml")):
        of_study = read_yaml(root, f"workflow/studies/{path.name}").get("claims") or {}
        of_scale = (studies.get(path.stem) or {}).get("claims") or {}
        read = {name: _claim_arms(f"workflow/studies/{path.name}", name, keys) for name, keys in of_study.items()}
        read |= {name: _claim_arms(f"workflow/scales/{scale}.yaml", name, keys) for name, keys in of_scale.items()}
        arms_by_study[path.stem] = read
    return arms_by_study


def registered_arms(claim: str, scale: str) -> ClaimArms:
    """Return the arms of a claim in the project of the current folder; empty if none are registered."""
    return read_arms(Path(), scale).get(claim.partition("-")[0], {}).get(claim, ClaimArms())


def _claim_arms(file: str, name: str, keys: dict[str, Any]) -> ClaimArms:
    """Return the arms of one claim from the keys in a file."""
    registered = {claim.id: claim for claim in read_claims().claims}
    if (claim := registered.get(name)) is None:
        raise UserError(f"{file}: claims: no claim {name!r}{near_misses(name, list(registered))}")
    try:
        mapped = ClaimArms.model_validate_json(json.dumps(keys), strict=True)
    except ValidationError as caught:
        error = caught.errors()[0]
        key = ".".join(map(str, ("claims", name, *error["loc"])))
        raise UserError(f"{file}: {key}: {error['msg'].removeprefix('Value error, ')}; correct it") from None
    arm_names = {arm for arm, _ in mapped.named()}
    for key, names, allowed in ("items", mapped.items, claim.criterion.for_each), ("arms", arm_names, claim.arms):
        if unknown := sorted({*names} - {*allowed}):
            valid = ", ".join(allowed) or "none"
            raise UserError(f"{file}: claims.{name}.{key}: no {unknown[0]!r}; the claim has {valid}")
    return mapped
