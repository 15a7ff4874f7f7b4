"""Notes of stages: a stage writes its state into its output folder. The file of the note is also a lock."""

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
from formerlab.files import DiskFull, is_locked, locked
from formerlab.results.stages import OPTIMIZER, STAGES

Note = dict[str, Any]

SAFE = "Finished work is saved; the same command continues where this one stopped."
NOTE_BYTES = 1024
"""Minimum size of a note in bytes, so that the final state can be written on a full disk."""
MAX_REASON_LENGTH = 400
"""Maximum number of characters of a reason."""


@contextmanager
def stage_note(stage: str, folder: Path) -> Iterator[None]:
    """Write a note with the state "running" to `folder`, run the block, and remove the note.

    If the block fails or is stopped, the note remains with the state "failed" or "stopped" and the reason. Temporary
    files of a killed process are removed first. Raises UserError if another process runs the stage in this folder.
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
        ending = {"state": state, "reason": (str(error).partition("\n")[0] or otherwise)[:MAX_REASON_LENGTH]}
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
            raise DiskFull(path) from error
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


def written_note(stage: str, folder: Path) -> Note | None:
    """Return the note of a stage in `folder` as it was written, or None if it is missing or invalid."""
    return _read(_path(stage, folder))


def running_process(stage: str, folder: Path) -> str | None:
    """Describe the process that runs a stage in `folder`; return None if no process runs it or the file system has no
    locks.
    """
    path = _path(stage, folder)
    return _process_of(path) if is_locked(path) else None


def read_note(stage: str, folder: Path) -> Note | None:
    """Return the note of a stage in `folder`, or None if it is missing or invalid.

    If the process of a running stage was on this machine and has ended, the state is "killed".
    """
    path = _path(stage, folder)
    note = _read(path)
    if note is None or note["state"] != "running" or note["host"] != socket.gethostname():
        return note
    running = is_locked(path)
    if running or (running is None and psutil.pid_exists(note["pid"])):
        return note
    return note | {"state": "killed", "reason": "the process is gone"} if path.exists() else None


def _half_written(stage: str, folder: Path) -> Iterator[Path]:
    """Yield the temporary files that a stage may have left in its folder."""
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
    """Overwrite the note in its file, because a new file would need free disk space."""
    with open(path, "rb+") as file:
        file.write(json.dumps(note, ensure_ascii=False).encode().ljust(NOTE_BYTES) + b"\n")
        file.truncate()


def _process_of(path: Path) -> str:
    """Describe the process of a note for messages."""
    note = _read(path)
    return "process {pid} on {host}, since {since}".format(**note) if note else "another process"
