"""The note of a stage in its folder: it locks the folder, and `status` reads it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import NoRoom, is_locked, locked
from formerlab.results.stages import OPTIMIZER, STAGES

Note = dict[str, Any]

SAFE = "What is finished is safe; the same command goes on where this one stopped."
ROOM = 1024
"""Bytes of a note, so that its end can be written into it even on a full disk."""
LONGEST_REASON = 400


@contextmanager
def noted(stage: str, folder: Path) -> Iterator[None]:
    """Leave a note in `folder` while a stage runs, and why it ended where it did not finish.

    Files that it left half written when it was killed before are removed. Raises UserError where another process does
    the same work, which the message names.
    """
    path = _path(stage, folder)
    note = {
        "stage": stage,
        "state": "running",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "log": os.environ.get("FORMERLAB_LOG"),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }

    def end(state: str, error: BaseException, otherwise: str) -> None:
        said = {"state": state, "reason": (str(error).partition("\n")[0] or otherwise)[:LONGEST_REASON]}
        with suppress(OSError):  # the error itself goes on to the caller
            _write(path, note | said)

    def held_by() -> str:
        return f"{folder}: {stage} is under way here already ({_who(path)}); wait for it, or stop it"

    with locked(path, held_by):
        for left in _half_written(stage, folder):
            left.unlink(missing_ok=True)
        try:
            _write(path, note)
        except OSError as error:
            path.unlink()
            raise NoRoom(path) from error
        try:
            yield
        except (StoppedEarly, KeyboardInterrupt) as error:
            note["progress"] = getattr(error, "progress", [])
            end("stopped", error, "interrupted")
            raise
        except BaseException as error:
            note["mistake"] = isinstance(error, UserError)
            end("failed", error, type(error).__name__)
            raise
        path.unlink(missing_ok=True)


def note_of(stage: str, folder: Path) -> Note | None:
    """Return the note that a stage left in `folder`, as it left it."""
    return _read(_path(stage, folder))


def holder(stage: str, folder: Path) -> str | None:
    """Name the process that works in `folder`, if there is one, as far as the file system passes locks on."""
    path = _path(stage, folder)
    return _who(path) if is_locked(path) else None


def read_note(stage: str, folder: Path) -> Note | None:
    """Return the note that a stage left in `folder`; one whose process is gone reads as killed."""
    path = _path(stage, folder)
    note = _read(path)
    if note is None or note["state"] != "running" or note["host"] != socket.gethostname():
        return note
    works = is_locked(path)
    if works or (works is None and psutil.pid_exists(note["pid"])):
        return note
    return note | {"state": "killed", "reason": "the process is gone"} if path.exists() else None


def _half_written(stage: str, folder: Path) -> Iterator[Path]:
    """Yield what a killed process left of the files that this stage alone writes; of prepared data that is all."""
    if stage == "data":
        yield from folder.rglob(".*.tmp")
    for name in (*STAGES[stage].written, *([OPTIMIZER] if stage == "train" else [])):
        yield from folder.glob(f".{name}.*.tmp")


def _path(stage: str, folder: Path) -> Path:
    return folder / f".{stage}.state.json"


def _read(path: Path) -> Note | None:
    try:
        note: Note = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note if {"state", "pid", "host"} <= note.keys() else None


def _write(path: Path, note: Note) -> None:
    """Write a note over the one before it, in the same file: a new one might find no room."""
    with open(path, "rb+") as file:
        file.write(json.dumps(note, ensure_ascii=False).encode().ljust(ROOM) + b"\n")
        file.truncate()


def _who(path: Path) -> str:
    note = _read(path)
    return "process {pid} on {host}, since {since}".format(**note) if note else "another process"
