"""Atomic writes of files, lock files, JSON records and fingerprints."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from formerlab.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers: the disk is full, the user's quota is exhausted, or the file is too large for the system."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of a file system that does not support locks."""
_NO_ROOM_MESSAGES = re.compile(
    rf"os error ({'|'.join(map(str, NO_ROOM))})\b|PytorchStreamWriter failed|unexpected pos \d|iostream error"
    r"|\d requested and \d+ written|Not enough free space to write"
)
"""Messages of a full disk from safetensors, torch and NumPy, which raise other exceptions than OSError."""
RECORD_HASH = "record_sha256"
"""Key of a record for the hash of all other keys."""
LOCK_TIMEOUT_S = 1.0
"""Time in seconds to wait for a lock, which `is_locked` of another process holds for a moment."""


class DiskFull(UserError, OSError):
    """The disk is full; existing files are untouched."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: could not be written, is the disk full? Make room, then run the same command again")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; rename it to `path` on success and remove it on failure.

    Raises DiskFull if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0o077)  # the umask can only be read by setting it
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # some libraries ignore the umask and create private files
        os.replace(temporary, path)
    except Exception as error:
        if is_disk_full(error):
            raise DiskFull(path) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full."""
    return (isinstance(error, OSError) and error.errno in NO_ROOM) or bool(_NO_ROOM_MESSAGES.search(str(error)))


@contextmanager
def locked(path: Path, problem: Callable[[], str]) -> Iterator[None]:
    """Hold a lock file during the block; the system releases the lock when the process ends.

    On NFS, the lock works between machines unless the mount has the options `nolock` or `local_lock`. On a file system
    without locks, a warning is printed and nothing is locked. The block may write or delete the file. Raises UserError
    with the message `problem()` if another process holds the lock.
    """
    from filelock import FileLock, Timeout  # not at the top: the import takes 0.1 s

    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, LOCK_TIMEOUT_S, poll_interval=0.02, fallback_to_soft=False))
        except Timeout:
            raise UserError(problem()) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(f"{path}: cannot be locked here ({error.strerror}); do not start a stage twice", file=sys.stderr)
        yield


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds a lock file, or None if the file system does not support locks."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write an indented JSON file atomically."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    write_text(path, (text if is_utf8(text) else json.dumps(value, indent=1)) + "\n")


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8."""
    return text.encode("utf-8", "ignore").decode() == text


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write the record of a stage atomically, with its SHA-256; NaN and infinities become null."""
    record = json.loads(json.dumps(record), parse_constant=lambda _: None)
    write_json(path, record | {RECORD_HASH: record_hash(record)})


def record_hash(record: dict[str, Any]) -> str:
    """Return the SHA-256 of a record without its hash, for any order of its keys."""
    content = {key: value for key, value in record.items() if key != RECORD_HASH}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Parse JSON. Raises ValueError for duplicate keys, for a record whose hash does not match, and with `finite` for
    numbers that are not finite.
    """
    number = _finite if finite else float
    return json.loads(text, object_pairs_hook=_checked, parse_constant=number, parse_float=number)


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        key = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"key {key!r} is given twice")
    if RECORD_HASH in value and value[RECORD_HASH] != record_hash(value):
        raise ValueError("changed since its stage wrote it")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_json(path: Path, *, finite: bool = True) -> Any:
    """Read a JSON file with `parse_json`; raise UserError for a missing or damaged file."""
    try:
        return parse_json(path.read_text(encoding="utf-8"), finite=finite)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it and run the stage that writes it again") from None


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """Read the record of a stage; raise UserError if it is not a mapping with these keys."""
    record = read_json(path)
    if not isinstance(record, dict) or (missing := [key for key in keys if key not in record]):
        problem = f"has no key {', '.join(missing)}" if isinstance(record, dict) else "is not a record"
        raise UserError(f"{path}: {problem}; delete it and run the stage that writes it again")
    return record


def stamp(status: os.stat_result) -> list[int]:
    """Return numbers that change if a file changes: size, mtime, inode and ctime."""
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file without loading it into memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: object) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON value, for any order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def variable(name: str) -> str | None:
    """Return the value of an environment variable, or None if it is empty or not set."""
    return os.environ.get(name, "").strip() or None
