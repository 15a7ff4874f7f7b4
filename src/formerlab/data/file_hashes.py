"""The SHA-256 of files, remembered while size and time of change stay the same."""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from formerlab.data.workers import available_cores
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json
from formerlab.progress import Progress
from formerlab.released import WEIGHTS, ReleasedModel

FILE_HASHES = "file_hashes.json"
"""Beside a manifest: the SHA-256 of the source's files while they are not touched."""


def file_hashes(paths: Iterable[Path], cache: Path | None) -> dict[Path, str]:
    """Return the SHA-256 of each file, reading only those whose size or time of change is not that in the cache."""
    stamps = {path: [(status := path.stat()).st_size, status.st_mtime_ns] for path in paths}
    digests: dict[Path, str] = {}
    with suppress(UserError, LookupError, ValueError, TypeError, AttributeError):  # a broken cache is ignored
        known = read_json(cache) if cache is not None else {}
        digests = {path: known[str(path)][1] for path in stamps if known.get(str(path), [None])[0] == stamps[path]}
    if unknown := [path for path in stamps if path not in digests]:
        size = sum(stamps[path][0] for path in unknown)
        with (
            Progress(size, "fingerprint", unit="B", scale=True, delay=2) as bar,
            ThreadPoolExecutor(available_cores()) as threads,
        ):
            for path, digest in zip(unknown, threads.map(sha256, unknown), strict=True):
                digests[path] = digest
                bar.advance(stamps[path][0])
        if cache is not None:
            with suppress(OSError):  # without it files are read again
                write_json(cache, {str(path): [stamps[path], digests[path]] for path in stamps})
    return digests


def files_state(model: ReleasedModel, cache: Path | None = None, *, weights: bool = True) -> str | None:
    """Return 64 hexadecimal digits that change when the files of a released model do; None where they are not here.

    They are the SHA-256 of the file where there is one. Without `weights` files that hold nothing else are left out.
    `cache` names a file that saves reading unchanged files again.
    """
    try:
        files = [path for path in model.files() if weights or path.suffix not in WEIGHTS or path.suffix == ".gguf"]
        hashes = file_hashes(files, cache)
    except (UserError, OSError):
        return None
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    named = "".join(f"{path.name} {digest}\n" for path, digest in sorted(hashes.items()))
    return hashlib.sha256(named.encode()).hexdigest()
