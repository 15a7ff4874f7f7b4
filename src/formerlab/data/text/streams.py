"""Token streams on disk: write them in constant memory, and memory-map them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from formerlab.data.manifest import REMEDY, check_hashes, read_manifest
from formerlab.data.text.tokenizer import read_tokenizer
from formerlab.errors import UserError
from formerlab.files import replacing, sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class StreamWriter:
    """Appends token ids to a `.npy` file, as uint16 if the vocabulary allows it, otherwise as uint32."""

    def __init__(self, file: BinaryIO, vocabulary: int) -> None:
        self._file = file
        self.dtype = np.dtype("uint16" if vocabulary <= 1 << 16 else "uint32")
        self.documents = self.bytes = self.tokens = 0
        self.write_header()

    def append(self, tokens: np.ndarray, documents: int, size: int) -> None:
        """Append the tokens of `documents` documents with `size` bytes of text."""
        tokens.astype(self.dtype, copy=False).tofile(self._file)
        self.tokens += len(tokens)
        self.documents += documents
        self.bytes += size

    def write_header(self) -> None:
        """Write the current length into the header; numpy pads the header, so its size does not change."""
        self._file.seek(0)
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.tokens,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def entry(self, path: Path) -> dict[str, Any]:
        """Return the manifest entry of the finished stream at `path`."""
        sizes = {"documents": self.documents, "bytes": self.bytes, "tokens": self.tokens}
        return {"file": path.name, **sizes, "sha256": sha256(path)}


@contextmanager
def stream_writer(path: Path, vocabulary: int) -> Iterator[StreamWriter]:
    """Yield a writer whose file is moved to `path` if the block succeeds and removed otherwise."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        stream = StreamWriter(file, vocabulary)
        yield stream
        stream.write_header()


def load_stream(out: Path, split: str) -> np.ndarray:
    """Return the tokens of a split as a memory-mapped array of shape (tokens,), uint16 or uint32.

    Raises UserError for an unknown split and for a missing or damaged file.
    """
    splits = read_manifest(out)["splits"]
    if split not in splits:
        raise UserError(f"{out}: no split '{split}'; choose from {', '.join(splits)}")
    path, expected = out / splits[split]["file"], splits[split]["tokens"]
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {REMEDY}") from None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path}: not a complete token stream ({error}); {REMEDY}") from None
    if tokens.shape != (expected,) or tokens.dtype not in (np.uint16, np.uint32):
        actual = f"{tokens.dtype} of shape {tokens.shape}"
        raise UserError(f"{path}: {actual}, but the manifest says {expected} tokens; {REMEDY}")
    return tokens  # type: ignore[no-any-return]


def load_tokenizer(out: Path) -> "Tokenizer":
    """Return the tokenizer of prepared data. Raises UserError if it is missing or changed."""
    path = out / "tokenizer.json"
    check_hashes({path: read_manifest(out)["tokenizer"]["sha256"]})
    return read_tokenizer(path)
