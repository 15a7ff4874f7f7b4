"""The manifest of prepared data, which is written last and so proves that they are whole, and the check of files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from formerlab.data.file_hashes import file_hashes
from formerlab.errors import UserError
from formerlab.files import read_json

SCHEMA = 1

MANIFEST = "manifest.json"

REMEDY = "run the data stage again"

CHECKED = "checked_hashes.json"
"""File beside a manifest: the SHA-256 of files that `verify` has read, while they are unchanged."""


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


def verify(out: Path) -> None:
    """Check all files of prepared data of any kind. Raises UserError naming the first whose SHA-256 differs.

    Files that were checked before are read again only where size or time of change differ.
    """
    manifest = read_manifest(out)
    entries = [*manifest["splits"].values(), *manifest["questions"]]
    expected = {out / entry["file"]: entry["sha256"] for entry in entries}
    expected |= {out / entry["labels"]: entry["labels_sha256"] for entry in entries if "labels" in entry}
    expected |= {out / entry["offsets"]: None for entry in entries if "offsets" in entry}
    if "tokenizer" in manifest:
        expected[out / "tokenizer.json"] = manifest["tokenizer"]["sha256"]
    check_hashes(expected, out / CHECKED)


def check_hashes(expected: Mapping[Path, str | None], cache: Path | None = None) -> None:
    """Raise UserError naming the first file that is missing or has another SHA-256 than it is known to have."""
    for path in expected:
        if not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
    known = {path: due for path, due in expected.items() if due is not None}
    for path, found in file_hashes(known, cache).items():
        if found != (due := known[path]):
            raise UserError(f"{path}: damaged or changed (SHA-256 {found[:16]}..., expected {due[:16]}...); {REMEDY}")
