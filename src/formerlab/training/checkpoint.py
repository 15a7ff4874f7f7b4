"""The checkpoint of a run in progress: one file, replaced whole, that says which run it belongs to.

Tensors that are split over processes are gathered for it, so any number of processes can go on from it. The checkpoint
before the last stays beside it, in case the disk damages the last.
"""

import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from formerlab.errors import UserError
from formerlab.files import replacing
from formerlab.training import processes
from formerlab.training.record import SUPERSEDED

Content = dict[str, Any]
PREVIOUS = "previous.pt"
"""The checkpoint before the last, beside it."""


class DamagedFile(UserError):
    """A file does not hold what was written into it."""


def save_checkpoint(path: Path, content: Content, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint; the one before it stays, whole. Raises NoRoom where the disk is full."""
    with replacing(path) as temporary:
        torch.save({"belongs_to": belongs_to, "state": content}, temporary)
        if path.exists():
            os.replace(path, path.with_name(PREVIOUS))


def found_checkpoint(path: Path, belongs_to: dict[str, str]) -> Content | None:
    """Return the checkpoint to go on from, if there is one; a broken one or that of another run is set aside."""
    with processes.first_in_turn():
        if processes.rank() == 0:  # it writes already when the others come here
            for left in path.parent.glob(".*.tmp"):
                left.unlink()  # half a checkpoint of a killed process
        try:
            return load_checkpoint(path, belongs_to)
        except UserError as error:
            aside = path.parent.with_name(SUPERSEDED)
            shutil.rmtree(aside, ignore_errors=True)
            path.parent.rename(aside)
            print(f"starting from step 0: {error}; it is in {aside} until the run is finished", file=sys.stderr)
            return None


def load_checkpoint(path: Path, belongs_to: dict[str, str]) -> Content | None:
    """Read a checkpoint of exactly this run (same spec, data, code and initial weights), if there is one.

    Where the file is damaged or missing, the one before it is read, with a warning. Raises UserError where both are
    damaged, or where it belongs to another run; the message names what differs.
    """
    present = [one for one in (path, path.with_name(PREVIOUS)) if one.exists()]
    for one in present:  # a process killed between the two renamings of a save leaves the one before alone
        try:
            content = load_tensors(one, {"belongs_to", "state"}, "its steps are lost")
        except DamagedFile as error:
            if one == present[-1]:
                raise
            print(f"{error}; going on from the one before it, {PREVIOUS}", file=sys.stderr)
            continue
        if differing := differences(content["belongs_to"], belongs_to):
            raise UserError(f"{one}: checkpoint of another run ({differing})")
        return dict(content["state"])
    return None


def load_tensors(path: Path, keys: set[str], remedy: str) -> Content:
    """Read a mapping with these keys that `torch.save` wrote, tensors and plain values only.

    Tensors are mapped, so that processes which read one file hold it once; its checksums are tested before. Raises
    DamagedFile where there is no whole file of that kind.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if damaged := file.testzip():
                raise zipfile.BadZipFile(f"checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file may raise any error
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise DamagedFile(f"{path}: broken ({reason}); {remedy}") from None
    if not isinstance(content, dict) or content.keys() != keys:
        raise DamagedFile(f"{path}: broken (holds no {' and '.join(sorted(keys))}); {remedy}")
    return content


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in which of spec, data, code and initial weights two runs differ; nothing where they are the same."""
    keys = [key for key in sorted(found | wanted) if found.get(key) != wanted.get(key)]
    return ", ".join(f"{key} {found.get(key)} there, {wanted.get(key)} here" for key in keys)
