"""Token streams on disk: written in constant memory, read memory-mapped, checked against the manifest."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from formerlab.data.file_hashes import file_hashes
from formerlab.data.text.encoding import Encoded
from formerlab.data.text.tokenizer import read_tokenizer
from formerlab.errors import UserError
from formerlab.files import read_json, replacing, sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCHEMA = 1

REMEDY = "run the data stage again"

CHECKED = "checked_hashes.json"
"""Beside a manifest: the SHA-256 of the files that `verify` has read, while they are not touched."""


class Stream:
    """A `.npy` file of tokens that grows at its end."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        """Begin the stream with the header of an empty array."""
        self._file = file
        self._dtype = np.dtype(dtype)
        self.documents = 0
        self.bytes = 0
        self.tokens = 0
        self._write_header()
        self._start = file.tell()

    def append(self, encoded: Encoded) -> None:
        """Append documents."""
        encoded.tokens.astype(self._dtype, copy=False).tofile(self._file)
        self.tokens += len(encoded.tokens)
        self.documents += encoded.documents
        self.bytes += encoded.bytes

    def finish(self) -> None:
        """Write the final length into the header, which numpy pads so that any length fits."""
        self._file.seek(0)
        self._write_header()
        if self._file.tell() != self._start:
            raise RuntimeError("the header of the stream changed its size")

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.tokens,)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextmanager
def writing(path: Path, dtype: str) -> Iterator[Stream]:
    """Open a stream that takes the name `path` when the block ends well, and leaves nothing otherwise."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        stream = Stream(file, dtype)
        yield stream
        stream.finish()


def read_manifest(out: Path) -> dict[str, Any]:
    """Return the manifest of prepared data. Raises UserError where there is none or it is not one of ours."""
    path = out / "manifest.json"
    if not path.exists():
        raise UserError(f"{path}: no such file, so the data are not prepared; {REMEDY}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise UserError(f"{path}: not a manifest of schema {SCHEMA}; {REMEDY}")
    return manifest


def lender(out: Path) -> Path | None:
    """Return the folder of the data set that lends its tokenizer to these prepared data; nothing where they own it."""
    tokenizer = read_manifest(out)["spec"].get("tokenizer") or {}
    return out.parent / tokenizer["data"] if tokenizer.get("kind") == "of" else None


def load_stream(out: Path, split: str) -> np.ndarray:
    """Return the tokens of a split, memory-mapped: one-dimensional, uint16 or uint32.

    Raises UserError naming the stream where it is missing, truncated or not what the manifest says.
    """
    splits = read_manifest(out)["splits"]
    if split not in splits:
        raise UserError(f"{out}: no split '{split}'; choose from {', '.join(splits)}")
    path = out / splits[split]["file"]
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {REMEDY}") from None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path}: not a whole token stream ({error}); {REMEDY}") from None
    expected = (splits[split]["tokens"],)
    if tokens.shape != expected or tokens.dtype not in (np.uint16, np.uint32):
        raise UserError(
            f"{path}: holds {tokens.dtype} of shape {tokens.shape}, the manifest says {expected[0]} tokens; {REMEDY}"
        )
    return tokens  # type: ignore[no-any-return]


def load_tokenizer(out: Path) -> "Tokenizer":
    """Return the tokenizer the streams were made with. Raises UserError where it is missing or changed."""
    path, expected = out / "tokenizer.json", read_manifest(out)["tokenizer"]["sha256"]
    if _is_there(path):
        _compare(path, sha256(path), expected)
    return read_tokenizer(path)


def verify(out: Path) -> None:
    """Check all files of prepared data of any kind. Raises UserError naming the first whose SHA-256 differs.

    Files that were checked before are read again only where size or time of change differ.
    """
    manifest = read_manifest(out)
    entries = [*manifest["splits"].values(), *manifest.get("questions", [])]
    expected = {out / entry["file"]: entry["sha256"] for entry in entries}
    expected |= {out / entry["labels"]: entry["labels_sha256"] for entry in entries if "labels" in entry}
    if "tokenizer" in manifest:
        expected[out / "tokenizer.json"] = manifest["tokenizer"]["sha256"]
    for path, found in file_hashes(filter(_is_there, expected), out / CHECKED).items():
        _compare(path, found, expected[path])


def _is_there(path: Path) -> bool:
    if not path.is_file():
        raise UserError(f"{path}: no such file; {REMEDY}")
    return True


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise UserError(f"{path}: damaged or changed (SHA-256 {found[:16]}..., expected {expected[:16]}...); {REMEDY}")
