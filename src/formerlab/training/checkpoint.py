"""Checkpoints of a run in progress. Sharded tensors are gathered, so any number of processes can resume."""

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
"""File name of the previous checkpoint, which is used if the last checkpoint is damaged."""


class DamagedFile(UserError):
    """The content of a file is damaged."""


def save_checkpoint(path: Path, content: Content, hashes: dict[str, str]) -> None:
    """Write a checkpoint atomically and rename the previous checkpoint to `PREVIOUS`.

    `hashes` contains the hashes of spec, data, code and, for a child run, initial weights. Raises DiskFull if the disk
    is full.
    """
    with replacing(path) as temporary:
        torch.save({"belongs_to": hashes, "state": content}, temporary)
        if path.exists():
            os.replace(path, path.with_name(PREVIOUS))


def checkpoint_to_resume(path: Path, hashes: dict[str, str]) -> Content | None:
    """Return the checkpoint to resume from, or None.

    A checkpoint that is damaged or of another run is moved to the folder `SUPERSEDED`, with a warning.
    """
    with processes.rank_zero_first():
        if processes.rank() == 0:  # other ranks could delete a file that rank 0 is writing
            for temporary in path.parent.glob(".*.tmp"):
                temporary.unlink()  # incomplete checkpoint of a killed process
        try:
            return load_checkpoint(path, hashes)
        except UserError as error:
            folder = path.parent.with_name(SUPERSEDED)
            shutil.rmtree(folder, ignore_errors=True)
            path.parent.rename(folder)
            print(f"starting from step 0: {error}; checkpoint moved to {folder} until the run ends", file=sys.stderr)
            return None


def load_checkpoint(path: Path, hashes: dict[str, str]) -> Content | None:
    """Read the checkpoint of the run with these hashes; return None if there is no checkpoint.

    If the last checkpoint is missing or damaged, the previous checkpoint is read; damage causes a warning. Raises
    UserError if no existing checkpoint can be read, or if the checkpoint is of another run.
    """
    present = [candidate for candidate in (path, path.with_name(PREVIOUS)) if candidate.exists()]
    for candidate in present:
        try:
            content = load_tensors(candidate, {"belongs_to", "state"}, "its steps are lost")
        except DamagedFile as error:
            if candidate == present[-1]:
                raise
            print(f"{error}; resuming from the previous checkpoint, {PREVIOUS}", file=sys.stderr)
            continue
        if differing := differences(content["belongs_to"], hashes):
            raise UserError(f"{candidate}: checkpoint of another run ({differing})")
        return dict(content["state"])
    return None


def load_tensors(path: Path, keys: set[str], remedy: str) -> Content:
    """Read a mapping with these keys that `torch.save` wrote; only tensors and plain values are loaded.

    Tensors are memory-mapped, so that processes share the memory. Raises DamagedFile if the file is damaged or has
    other keys; `remedy` (what to do, or what is lost) ends the message.
    """
    try:
        with zipfile.ZipFile(path) as file:
            if damaged := file.testzip():
                raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file may raise any error
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise DamagedFile(f"{path}: damaged ({reason}); {remedy}") from None
    if not isinstance(content, dict) or content.keys() != keys:
        raise DamagedFile(f"{path}: damaged (must contain the keys {' and '.join(sorted(keys))} only); {remedy}")
    return content


def differences(existing: dict[str, str], expected: dict[str, str]) -> str:
    """Describe the hashes of two runs (spec, data, code, initial weights) that differ."""
    keys = [key for key in sorted(existing | expected) if existing.get(key) != expected.get(key)]
    return ", ".join(f"{key} is {existing.get(key)}, expected {expected.get(key)}" for key in keys)
