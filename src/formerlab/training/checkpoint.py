"""The checkpoint of a run in progress: one file, replaced whole, that says which run it belongs to."""

import pickle
import zipfile
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
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        found, state = content["belongs_to"], content["state"]
    except (RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: broken checkpoint ({reason}); delete it to train from the start") from None
    differing = sorted(key for key in belongs_to | found if belongs_to.get(key) != found.get(key))
    if differing:
        details = ", ".join(f"{key} {found.get(key)} there, {belongs_to.get(key)} here" for key in differing)
        raise UserError(
            f"{path}: checkpoint of another run ({details}); "
            "go on with --on-mismatch restart, which keeps it as checkpoint.superseded"
        )
    return dict(state)
