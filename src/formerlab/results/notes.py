"""The note of a running stage in its output folder, which locks the folder and is read by the command `status`."""

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

SAFE = "Finished work is saved; the same command continues where this one stopped."
ROOM = 1024
"""Size of a note in bytes, reserved so that the final state can be written on a full disk."""
LONGEST_REASON = 400


@contextmanager
def noted(stage: str, folder: Path) -> Iterator[None]:
    """Write a note to `folder` while a stage runs; a stage that fails or stops leaves the reason in its note.

    Temporary files of a killed process are removed first. Raises UserError if another process runs the same stage in
    this folder; the message names the process.
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
        ending = {"state": state, "reason": (str(error).partition("\n")[0] or otherwise)[:LONGEST_REASON]}
        with suppress(OSError):  # the caller gets the original error
            _write(path, note | ending)

    def already_running() -> str:
        return f"{folder}: {stage} is already running here ({_process_of(path)}); wait for it, or stop it"

    with locked(path, already_running):
        for temporary in _half_written(stage, folder):
            temporary.unlink(missing_ok=True)
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
    """Return the note of a stage in `folder` as written, or None if there is no valid note."""
    return _read(_path(stage, folder))


def holder(stage: str, folder: Path) -> str | None:
    """Describe the process that runs a stage in `folder`; None without such a process or without file locks."""
    path = _path(stage, folder)
    return _process_of(path) if is_locked(path) else None


def read_note(stage: str, folder: Path) -> Note | None:
    """Return the note of a stage in `folder`; if its process on this machine has ended, its state is "killed"."""
    path = _path(stage, folder)
    note = _read(path)
    if note is None or note["state"] != "running" or note["host"] != socket.gethostname():
        return note
    running = is_locked(path)
    if running or (running is None and psutil.pid_exists(note["pid"])):
        return note
    return note | {"state": "killed", "reason": "the process is gone"} if path.exists() else None


def _half_written(stage: str, folder: Path) -> Iterator[Path]:
    """Yield the temporary files of a stage; for `data`, all temporary files in the folder."""
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
    """Overwrite the note in place, because a new file would need free disk space."""
    with open(path, "rb+") as file:
        file.write(json.dumps(note, ensure_ascii=False).encode().ljust(ROOM) + b"\n")
        file.truncate()


def _process_of(path: Path) -> str:
    """Describe the process of a note for messages."""
    note = _read(path)
    return "process {pid} on {host}, since {since}".format(**note) if note else "another process"
