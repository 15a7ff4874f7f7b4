"""Find the plan of a configuration, and create it if it is missing. This module does not import torch or pydantic.

The name of a plan file is the fingerprint of all inputs of the plan: configuration, command-line values, source of the
package, and state of the data files. An existing plan is therefore valid, and running jobs keep their plan when the
configuration changes.
"""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from formerlab.errors import UserError
from formerlab.file_search import files_below, matches
from formerlab.files import stamp
from formerlab.plan import source_hashes
from formerlab.yaml_files import FAST

PLAN_VARIABLE = "FORMERLAB_PLAN"
PATH_KEYS = frozenset(("paths", "shots_from", "train", "valid", "test", "path", "name"))
"""Keys of a data set, a suite or a released model whose values are file names."""


def plan_path(root: Path, command_line: dict[str, Any]) -> Path:
    """Return the path of the plan for the files below `root` and the command line; it may not exist."""
    trees = [command_line, _read(root / "config.yaml")]
    watched = [root / "config.yaml", root / "workflow/data.yaml", *sorted((root / "workflow").glob("s*/*.yaml"))]
    if overlay := command_line.get("overlay", trees[1].get("overlay")):
        watched.append(root / str(overlay))
        trees.append(_read(watched[-1]))
    sets = [tree["set"] for tree in trees if isinstance(tree.get("set"), dict)]
    scales = {tree["scale"] for tree in (*trees, *sets) if isinstance(tree.get("scale"), str)}
    trees += [_read(root / "workflow" / "scales" / f"{scale}.yaml") for scale in sorted(scales)]
    values = json.loads(json.dumps(command_line, default=str))  # keys become text, as in `_make`, and can be sorted
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for path in watched:
        digest.update(f"\n{path.name}:".encode())
        digest.update(path.read_bytes() if path.is_file() else b"-")
    environment = source_hashes.current_hashes(), sys.version_info[:2], os.environ.get("FORMERLAB_DATA")
    for state in (*environment, *_data_stamps(root, trees)):
        digest.update(f"\n{state}".encode())
    return root / ".formerlab" / "plans" / f"{digest.hexdigest()[:16]}.json"


def root_of(plan: Path) -> Path:
    """Return the folder of a plan's configuration, or the working directory for a plan that was moved."""
    folders = plan.resolve().parents
    return folders[2] if (folders[0].name, folders[1].name) == ("plans", ".formerlab") else Path()


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, or {} if the file is invalid; planning reports the error."""
    try:
        tree = yaml.load(path.read_bytes(), Loader=FAST)  # faster than `read_yaml`
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _data_stamps(root: Path, trees: list[dict[str, Any]]) -> Iterator[object]:
    """Yield the stamp of each data file in the configuration, and the time of the last package installation."""
    yield Path(sysconfig.get_path("purelib")).stat().st_mtime_ns
    for pattern in sorted({pattern for tree in trees for pattern in _patterns(tree)}):
        for match in matches(pattern, root):
            for path, status in files_below(match):
                yield path, *stamp(status)


def _patterns(tree: Any) -> Iterator[str]:
    """Yield the file paths and patterns in a configuration, also below dotted keys."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        last = str(key).rpartition(".")[2]
        if last in PATH_KEYS:
            yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))
        yield from _patterns(value)


def ensure_plan(root: Path, command_line: dict[str, Any]) -> Path:
    """Return the path of the plan of this configuration, and write the plan if it is missing.

    Raises UserError for a mistake in the configuration, and if the active environment runs the code of another
    checkout.
    """
    checkout_package = root / "src" / "formerlab"
    if checkout_package.is_dir() and not checkout_package.samefile(source_hashes.PACKAGE):
        raise UserError(
            f"{root}: the active environment runs the code in {source_hashes.PACKAGE}; run `make setup` here, then use "
            ".venv/bin/python or activate .venv"
        )
    for _ in range(3):
        path = plan_path(root, command_line)
        if path.exists():
            return path
        _make(root, command_line, path)
        if plan_path(root, command_line) == path:
            return path
        path.unlink()  # an input was edited during planning
    raise UserError("configuration, data or code changed during planning; wait until no file changes, then try again")


def _make(root: Path, command_line: dict[str, Any], path: Path) -> None:
    """Write the plan in another process, because planning imports torch."""
    values = json.dumps(command_line, default=str)
    command = [sys.executable, "-m", "formerlab", "plan", "--command-line", values, "--write", str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        raise UserError(lines[-1].removeprefix("error: ") if lines else f"planning failed: {result.stderr.strip()}")


def read_plan(path: Path) -> dict[str, Any]:
    """Read a plan that `ensure_plan` wrote. Raises UserError if the file is not a plan."""
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "results" not in plan:
            raise ValueError("no key results")
    except (OSError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: not a plan ({error}); delete it or leave out --plan and ${PLAN_VARIABLE} to create a new plan"
        ) from None
    return plan


def typed(value: Any) -> Any:
    """Convert text scalars by the rules of YAML; Snakemake's command line leaves scalars inside {} and [] as text."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if not isinstance(value, str) or not value:
        return value
    try:
        scalar = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return value if isinstance(scalar, dict | list) else scalar
