"""Write files whole or not at all, and let one process at a time work in a folder."""

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
"""The disk is full, the user's share of it is, or the file is larger than the system allows."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""The file system has no locks."""
_NO_ROOM_MESSAGES = re.compile(
    rf"os error ({'|'.join(map(str, NO_ROOM))})\b|PytorchStreamWriter failed|unexpected pos \d|iostream error"
    r"|\d requested and \d+ written|Not enough free space to write"
)
"""The words of safetensors, torch and NumPy, whose writers raise errors of their own."""
RECORD_HASH = "record_sha256"
"""The key of a record that guards its other keys; records of older versions lack it."""
SECONDS_FOR_A_LOOK = 1.0
"""`is_locked` itself takes a lock for a moment; a lock that is free again within this time had no other holder."""


class NoRoom(UserError, OSError):
    """A file found no room on the disk; those that existed are untouched."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: could not be written, is the disk full? Make room, then run the same again")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden path of this process beside `path`; on success it takes that name, on failure it is removed.

    What a killed process leaves there, the next start of its stage removes (`results/notes.py`).
    Raises NoRoom where the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        umask = os.umask(0o077)  # it can only be read by being set; for that moment, the strictest
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # some libraries make files for their owner alone, against the umask
        os.replace(temporary, path)
    except Exception as error:
        if found_no_room(error):
            raise NoRoom(path) from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def found_no_room(error: BaseException) -> bool:
    """Return whether an error says that the disk is full."""
    return (isinstance(error, OSError) and error.errno in NO_ROOM) or bool(_NO_ROOM_MESSAGES.search(str(error)))


@contextmanager
def locked(path: Path, held_by: Callable[[], str]) -> Iterator[None]:
    """Hold a lock file, which its holder may write to; the system frees it when the process ends, however it ends.

    On NFS it holds between machines as far as the mount passes locks on (not with `nolock` or `local_lock`); where the
    file system has no locks, a warning says so and nothing is locked. Delete the file, if at all, before the block
    ends.
    Raises UserError where another process holds it: what `held_by` says.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second, which the DAG need not spend

    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(FileLock(path, SECONDS_FOR_A_LOOK, poll_interval=0.02, fallback_to_soft=False))
        except Timeout:
            raise UserError(held_by()) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(f"{path}: cannot be locked here ({error.strerror}); start nothing twice", file=sys.stderr)
        yield


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds a lock file; nothing where the file system cannot say."""
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
    """Write a text file whole."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file whole, readable by a person."""
    text = json.dumps(value, indent=1, ensure_ascii=False)  # which names of files need not be
    write_text(path, (text if is_utf8(text) else json.dumps(value, indent=1)) + "\n")


def is_utf8(text: str) -> bool:
    """Say whether a text can be written as UTF-8; what came from bytes of another encoding cannot."""
    return text.encode("utf-8", "ignore").decode() == text


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write the record of a stage whole, with the SHA-256 of all that it says; numbers that are not finite become null,
    since JSON has none.
    """
    record = json.loads(json.dumps(record), parse_constant=lambda _: None)
    write_json(path, record | {RECORD_HASH: record_hash(record)})


def record_hash(record: dict[str, Any]) -> str:
    """Return the SHA-256 of a record without its own hash, independent of the order of its keys."""
    told = {key: value for key, value in record.items() if key != RECORD_HASH}
    return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_json(text: str, *, finite: bool = True) -> Any:
    """Return a JSON value. Raises ValueError where a key occurs twice in a mapping, a number is not `finite`, or a
    record is not the one that its stage wrote.
    """
    number = _finite if finite else float
    return json.loads(text, object_pairs_hook=_checked, parse_constant=number, parse_float=number)


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))!r} twice")
    if RECORD_HASH in found and found[RECORD_HASH] != record_hash(found):
        raise ValueError("changed since its stage wrote it")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def read_json(path: Path, *, finite: bool = True) -> Any:
    """Read a JSON file as `parse_json` does; a missing or broken one is named."""
    try:
        return parse_json(path.read_text(encoding="utf-8"), finite=finite)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it and run the stage that writes it again") from None


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """Read the record of a stage. Raises UserError where it is not one, or lacks one of these keys."""
    record = read_json(path)
    if not isinstance(record, dict) or (missing := [key for key in keys if key not in record]):
        what = f"lacks {', '.join(missing)}" if isinstance(record, dict) else "is not a record"
        raise UserError(f"{path}: {what}; delete it and run the stage that writes it again")
    return record


def stamp(status: os.stat_result) -> list[int]:
    """Return numbers that change when a file does: size, time of change, inode, and the time of the inode's change,
    which a program cannot set back.
    """
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(value: object) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def variable(name: str) -> str | None:
    """Return the value of a variable, or None where it is empty or not set."""
    return os.environ.get(name, "").strip() or None
