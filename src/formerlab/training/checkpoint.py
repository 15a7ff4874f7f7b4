"""The checkpoint of a run in progress: one file, replaced whole, that says which run it belongs to."""

from pathlib import Path
from typing import Any

import torch

from formerlab.errors import UserError
from formerlab.files import replacing

State = dict[str, Any]


def save_checkpoint(path: Path, state: State, belongs_to: dict[str, str]) -> None:
    """Write a checkpoint; the one before it stays whole until the new one is."""
    with replacing(path) as temporary:
        torch.save({"belongs_to": belongs_to, "state": state}, temporary)


def load_checkpoint(path: Path, belongs_to: dict[str, str]) -> State:
    """Read a checkpoint of exactly this run (same spec, data, code and initial weights).

    Raises
    ------
    UserError
        Where the file is broken, or belongs to something else; the message names what differs.
    """
    content = load_tensors(path, {"belongs_to", "state"}, "delete it to train from the start")
    differing = differences(content["belongs_to"], belongs_to)
    if differing:
        raise UserError(
            f"{path}: checkpoint of another run ({differing}); "
            "go on with --on-mismatch restart, which keeps it as checkpoint.superseded"
        )
    return dict(content["state"])


def load_tensors(path: Path, keys: set[str], remedy: str) -> dict[str, Any]:
    """Read a mapping with these keys that `torch.save` wrote, tensors and plain values only.

    Raises
    ------
    UserError
        Where there is no whole file of that kind.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file makes of the reader is anybody's guess
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise UserError(f"{path}: broken ({reason}); {remedy}") from None
    if not isinstance(content, dict) or content.keys() != keys:
        raise UserError(f"{path}: broken (holds no {' and '.join(sorted(keys))}); {remedy}")
    return content


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """Say in which of spec, data, code and initial weights two runs differ; nothing where they are the same."""
    return ", ".join(
        f"{key} {found.get(key)} there, {wanted.get(key)} here"
        for key in sorted(found | wanted)
        if found.get(key) != wanted.get(key)
    )
