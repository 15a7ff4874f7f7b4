"""The manifest of prepared data, written last, which proves that they are whole; and the SHA-256 of files, remembered
while the files stay untouched.
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
"""Beside a manifest: the SHA-256 of the source's files while they are not touched."""
SCHEMA = 1
MANIFEST = "manifest.json"
REMEDY = "run the data stage again"
CHECKED = "checked_hashes.json"
"""File beside a manifest: the SHA-256 of files that `verify` has read, while they are unchanged."""


def file_hashes(
    paths: Iterable[Path], cache: Path | None, expected: Mapping[Path, str] | None = None, *, anew: bool = False
) -> dict[Path, str]:
    """Return the SHA-256 of each file, reading only those whose `stamp` is not that in the cache, or with `anew` all.

    The cache remembers the digests; with `expected`, only those that are expected.
    """
    stamps = {path: stamp(path.stat()) for path in paths}
    digests: dict[Path, str] = {}
    with suppress(UserError, LookupError, ValueError, TypeError, AttributeError):  # a broken cache is ignored
        known = read_json(cache) if cache is not None and not anew else {}
        digests = {path: known[str(path)][1] for path in stamps if known.get(str(path), [None])[0] == stamps[path]}
    if unknown := [path for path in stamps if path not in digests]:
        size = sum(stamps[path][0] for path in unknown)
        with Progress(size, "fingerprint", unit="B", scale=True, delay=2) as bar:
            for path, digest in zip(unknown, in_threads(sha256, unknown), strict=True):
                digests[path] = digest
                bar.advance(stamps[path][0])
        if cache is not None:
            sure = {path for path in stamps if expected is None or digests[path] == expected[path]}
            with suppress(OSError):  # without it files are read again
                write_json(cache, {str(path): [stamps[path], digests[path]] for path in stamps if path in sure})
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


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest of prepared data. Raises UserError where it is missing or not one of ours."""
    path = out / MANIFEST
    if not path.exists():
        raise UserError(f"{path}: no such file, so the data are not prepared; {REMEDY}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a manifest of schema {SCHEMA}; {REMEDY}")
    return manifest


def lender(out: Path) -> Path | None:
    """Return the folder of the data set whose tokenizer these prepared data use; None where they have their own."""
    tokenizer = read_manifest(out)["spec"].get("tokenizer") or {}
    return out.parent / tokenizer["data"] if tokenizer.get("kind") == "of" else None


def verify(out: Path, *, anew: bool = False) -> None:
    """Check all files of prepared data of any kind. Raises UserError naming the first whose SHA-256 differs.

    Files that were checked before are read again only if they were touched since, or with `anew`.
    """
    manifest = read_manifest(out)
    entries = [*manifest["splits"].values(), *manifest["questions"]]
    expected = {out / entry["file"]: entry["sha256"] for entry in entries}
    expected |= {out / entry["labels"]: entry["labels_sha256"] for entry in entries if "labels" in entry}
    expected |= {out / entry["offsets"]: None for entry in entries if "offsets" in entry}
    if "tokenizer" in manifest:
        expected[out / "tokenizer.json"] = manifest["tokenizer"]["sha256"]
    check_hashes(expected, out / CHECKED, anew=anew)


def verify_all(out: Path, *, anew: bool = False) -> None:
    """Check prepared data, and those whose tokenizer they use, on whose test text a run is measured too."""
    for folder in filter(None, (out, lender(out))):
        verify(folder, anew=anew)


def check_hashes(expected: Mapping[Path, str | None], cache: Path | None = None, *, anew: bool = False) -> None:
    """Raise UserError naming the first file that is missing or has another SHA-256 than it is known to have."""
    for path in expected:
        if not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
    known = {path: due for path, due in expected.items() if due is not None}
    for path, found in file_hashes(known, cache, known, anew=anew).items():
        if found != (due := known[path]):
            raise UserError(f"{path}: damaged or changed (SHA-256 {found[:16]}..., expected {due[:16]}...); {REMEDY}")
