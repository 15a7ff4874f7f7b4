"""Find the plan of a configuration, and have it written where there is none. Imports no torch and no pydantic.

A plan's file is named by the fingerprint of everything it depends on: configuration, values of the command line, and
the package's source. So a plan that exists is the right one, jobs that are running keep theirs when the configuration
changes, and reading the Snakefile costs no more than hashing a few files.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from formerlab.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "FORMERLAB_PLAN"


def plan_path(root: Path, given: dict[str, Any]) -> Path:
    """Return where the plan of this configuration is or will be; `given` are the values of the command line."""
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode())
    digest.update(f"{sys.version_info[:2]}".encode())
    watched = [root / "config.yaml", *sorted((root / "workflow").glob("s*/*.yaml"))]
    if overlay := given.get("overlay", _overlay_of(root / "config.yaml")):
        watched.append(root / str(overlay))
    for path in [*watched, *sorted(PACKAGE.rglob("*.py"))]:
        digest.update(f"\n{path.name}:".encode())
        digest.update(path.read_bytes() if path.is_file() else b"-")
    return root / ".formerlab" / "plans" / f"{digest.hexdigest()[:16]}.json"


def _overlay_of(config: Path) -> object:
    """Return the overlay that config.yaml names; a broken file is left for the plan to explain."""
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return tree.get("overlay") if isinstance(tree, dict) else None


def ensure_plan(root: Path, given: dict[str, Any]) -> Path:
    """Return the path of the plan of this configuration, written now if need be.

    Raises
    ------
    UserError
        With the one line that names the mistake in the configuration.
    """
    path = plan_path(root, given)
    if not path.exists():
        words = [sys.executable, "-m", "formerlab", "plan", "--given", json.dumps(given), "--write", str(path)]
        done = subprocess.run(
            words, cwd=root, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            raise UserError((done.stderr.strip() or "the plan could not be made").removeprefix("error: "))
    return path


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan that `ensure_plan` located."""
    plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return plan


def given_beyond_file(root: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the values in which Snakemake's merged config differs from config.yaml: those of its command line."""
    try:
        in_file = yaml.safe_load((root / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        in_file = None
    in_file = in_file if isinstance(in_file, dict) else {}
    return {key: value for key, value in config.items() if key not in in_file or in_file[key] != value}
