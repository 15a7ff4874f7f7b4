"""The manifest of prepared data, and cached SHA-256 hashes of files.

The manifest is written last, so data with a manifest are complete.
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from formerlab.data.threads import in_threads
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, stamp, write_json
from formerlab.progress import Progress
from formerlab.released import WEIGHTS, ReleasedModel

FILE_HASHES = "file_hashes.json"
"""File next to a manifest with cached SHA-256 hashes of the source's files, valid while the files are unchanged."""
SCHEMA = 1
MANIFEST = "manifest.json"
REMEDY = "run the data stage again"
CHECKED = "checked_hashes.json"
"""File next to a manifest with cached SHA-256 hashes of the files that `verify` has read, valid while the files are
unchanged.
"""


def file_hashes(
    paths: Iterable[Path], cache: Path | None, expected: Mapping[Path, str] | None = None, *, ignore_cache: bool = False
) -> dict[Path, str]:
    """Return the SHA-256 of each file; without `ignore_cache`, files whose stamp equals the cached stamp are not read.

    New digests are written to the cache; with `expected`, only digests that equal the expected digest are written.
    """
    stamps = {path: stamp(path.stat()) for path in paths}
    digests: dict[Path, str] = {}
    with suppress(UserError, LookupError, ValueError, TypeError, AttributeError):  # a damaged cache is ignored
        cached = read_json(cache) if cache is not None and not ignore_cache else {}
        digests = {path: cached[str(path)][1] for path in stamps if cached.get(str(path), [None])[0] == stamps[path]}
    if unknown := [path for path in stamps if path not in digests]:
        size = sum(stamps[path][0] for path in unknown)
        with Progress(size, "fingerprint", unit="B", scale=True, delay=2) as bar:
            for path, digest in zip(unknown, in_threads(sha256, unknown), strict=True):
                digests[path] = digest
                bar.advance(stamps[path][0])
        if cache is not None:
            valid = {path for path in stamps if expected is None or digests[path] == expected[path]}
            with suppress(OSError):  # without a cache, files are read again
                write_json(cache, {str(path): [stamps[path], digests[path]] for path in stamps if path in valid})
    return digests


def files_state(model: ReleasedModel, cache: Path | None = None, *, weights: bool = True) -> str | None:
    """Return a SHA-256 (64 hexadecimal digits) of the files of a released model, or None if they are not available.

    For a single file, this is the SHA-256 of the file. With weights=False, files that contain only weights are
    excluded. `cache` is a file that caches the hashes of files.
    """
    try:
        files = [path for path in model.files() if weights or path.suffix not in WEIGHTS or path.suffix == ".gguf"]
        hashes = file_hashes(files, cache)
    except (UserError, OSError):
        return None
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    lines = "".join(f"{path.name} {digest}\n" for path, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest of prepared data; raise UserError if it is missing or has another schema."""
    path = out / MANIFEST
    if not path.exists():
        raise UserError(f"{path}: no such file, so the data are not prepared; {REMEDY}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a manifest of schema {SCHEMA}; {REMEDY}")
    return manifest


def tokenizer_owner(out: Path) -> Path | None:
    """Return the folder of the data set that owns the tokenizer of these data, or None if the data own it."""
    tokenizer = read_manifest(out)["spec"].get("tokenizer") or {}
    return out.parent / tokenizer["data"] if tokenizer.get("kind") == "of" else None


def verify(out: Path, *, ignore_cache: bool = False) -> None:
    """Check the files of prepared data; raise UserError with the first file that is missing or has another SHA-256.

    A file that was checked before is read again only if its stamp has changed, or with `ignore_cache`.
    """
    manifest = read_manifest(out)
    entries = [*manifest["splits"].values(), *manifest["questions"]]
    expected = {out / entry["file"]: entry["sha256"] for entry in entries}
    expected |= {out / entry["labels"]: entry["labels_sha256"] for entry in entries if "labels" in entry}
    expected |= {out / entry["offsets"]: None for entry in entries if "offsets" in entry}
    if "tokenizer" in manifest:
        expected[out / "tokenizer.json"] = manifest["tokenizer"]["sha256"]
    check_hashes(expected, out / CHECKED, ignore_cache=ignore_cache)


def verify_all(out: Path, *, ignore_cache: bool = False) -> None:
    """Check prepared data and the data set that owns their tokenizer."""
    for folder in filter(None, (out, tokenizer_owner(out))):
        verify(folder, ignore_cache=ignore_cache)


def check_hashes(expected: Mapping[Path, str | None], cache: Path | None = None, *, ignore_cache: bool = False) -> None:
    """Raise UserError with the first file that is missing or whose SHA-256 differs from the expected hash."""
    for path in expected:
        if not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
    hashed = {path: sha for path, sha in expected.items() if sha is not None}
    for path, actual in file_hashes(hashed, cache, hashed, ignore_cache=ignore_cache).items():
        if actual != (sha := hashed[path]):
            raise UserError(f"{path}: damaged or changed (SHA-256 {actual[:16]}..., expected {sha[:16]}...); {REMEDY}")
