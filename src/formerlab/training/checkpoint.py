"""The checkpoint of a run in progress: one file, replaced whole, that says which run it belongs to.

Where tensors are split over processes, a folder stands in its place (`sharded_checkpoint.py`).

The one before it is kept beside it, for the day on which a disk gives back something else than was written.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from formerlab.errors import UserError
from formerlab.files import replacing
from formerlab.training.sharded_checkpoint import PARTS, REST, find_damage

State = dict[str, Any]
REMEDY = "delete it to train from the start"


class DamagedFile(UserError):
    """A file does not hold what was written into it."""


def previous(path: Path) -> Path:
    """Return where the checkpoint before that at `path` is kept."""
    return path.with_name(f"previous{path.suffix}")


def save_checkpoint(path: Path, state: State, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint; the one before it stays, whole.

    Raises
    ------
    NoRoom
        Where the disk is full; the checkpoints that exist are untouched.
    """
    with replacing(path) as temporary:
        torch.save({"belongs_to": belongs_to, "state": state}, temporary)
        keep_before(path)


def keep_before(path: Path) -> None:
    """Keep the checkpoint at `path`, if there is one, as the one before the next."""
    if path.exists():
        if path.is_dir() or previous(path).is_dir():
            remove(previous(path))
        os.replace(path, previous(path))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path, belongs_to: dict[str, str]) -> State:
    """Read a checkpoint of exactly this run (same spec, data, code and initial weights).

    Where the file is damaged or missing, the one before it is read, and that is said.

    Raises
    ------
    UserError
        Where no whole one is left, or it belongs to something else; the message names what differs.
    """
    before = previous(path)
    if not before.exists():
        return _load(path, belongs_to)
    if not path.exists():  # a process was killed between the two renamings of a save
        return _load(before, belongs_to)
    try:
        return _load(path, belongs_to)
    except DamagedFile as error:
        content = _load(before, belongs_to)
        print(f"{error}; going on from the one before it, {before.name}", file=sys.stderr)
        return content


def _load(path: Path, belongs_to: dict[str, str]) -> State:
    content = _load_parts(path) if path.is_dir() else load_tensors(path, {"belongs_to", "state"}, REMEDY)
    differing = differences(content["belongs_to"], belongs_to)
    if differing:
        raise UserError(
            f"{path}: checkpoint of another run ({differing}); "
            "go on with --on-mismatch restart, which keeps it as checkpoint.superseded"
        )
    return dict(content["state"])


def _load_parts(folder: Path) -> dict[str, Any]:
    content = load_tensors(folder / REST, {"belongs_to", "processes", "state"}, f"delete {folder.name}: {REMEDY}")
    if damage := find_damage(folder, content["processes"]):
        raise DamagedFile(f"{folder}: broken ({damage}); {REMEDY}")
    content["state"][PARTS] = str(folder)
    return content


def load_tensors(path: Path, keys: set[str], remedy: str) -> dict[str, Any]:
    """Read a mapping with these keys that `torch.save` wrote, tensors and plain values only.

    Raises
    ------
    DamagedFile
        Where there is no whole file of that kind.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file makes of the reader is anybody's guess
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise DamagedFile(f"{path}: broken ({reason}); {remedy}") from None
    if not isinstance(content, dict) or content.keys() != keys:
        raise DamagedFile(f"{path}: broken (holds no {' and '.join(sorted(keys))}); {remedy}")
    return content


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in which of spec, data, code and initial weights two runs differ; nothing where they are the same."""
    return ", ".join(
        f"{key} {found.get(key)} there, {wanted.get(key)} here"
        for key in sorted(found | wanted)
        if found.get(key) != wanted.get(key)
    )
