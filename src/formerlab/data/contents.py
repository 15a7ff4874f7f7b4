"""What files hold, told by their SHA-256 and remembered while they are not touched."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from formerlab.data.text.workers import available_cores
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json

CONTENTS = "contents.json"
"""Beside a manifest: the SHA-256 of the source's files while they are not touched."""

Stamp = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds: where both are as before, so is the content."""


def contents(paths: Iterable[Path], cache: Path | None) -> dict[Path, str]:
    """Return the SHA-256 of each file, reading only those whose stamp is not in the cache."""
    stamps = {path: _stamp(path) for path in paths}
    known = _remembered(cache)
    digests = {path: known[str(path)][1] for path in stamps if known.get(str(path), (None,))[0] == stamps[path]}
    unknown = [path for path in stamps if path not in digests]
    if unknown:
        size = sum(stamps[path][0] for path in unknown)
        with (
            tqdm(total=size, unit="B", unit_scale=True, desc="fingerprint", delay=2, leave=False) as bar,
            ThreadPoolExecutor(available_cores()) as threads,
        ):
            for path, digest in zip(unknown, threads.map(sha256, unknown), strict=True):
                digests[path] = digest
                bar.update(stamps[path][0])
        if cache is not None:
            write_json(cache, {str(path): [list(stamps[path]), digests[path]] for path in stamps})
    return digests


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _remembered(cache: Path | None) -> dict[str, tuple[Stamp, str]]:
    if cache is None or not cache.exists():
        return {}
    try:
        return {path: (tuple(stamp), digest) for path, (stamp, digest) in read_json(cache).items()}
    except (UserError, ValueError, TypeError, AttributeError):
        return {}  # a broken memory is no memory
