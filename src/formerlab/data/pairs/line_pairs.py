"""Sentence pairs from files whose lines correspond."""

import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from formerlab.data.file_hashes import file_hashes
from formerlab.data.pairs.source import Pair, PairSource
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.readers import opened
from formerlab.errors import UserError
from formerlab.spec import fingerprint

TwoFiles = tuple[str, str]
"""The file of the source language and that of the target language."""


class LinePairs(PairSource):
    """Two plain text files a split, one sentence a line, in UTF-8, packed (.gz .bz2 .xz .zst) or not."""

    outside_recipe: ClassVar[set[str]] = {"train", "valid", "test", "licence"}
    division: ClassVar[str] = "by a hash of the source line"
    named_as: ClassVar[str] = "the files named"

    kind: Literal["files"] = "files"
    source: str
    """Name of the language to translate from, such as de."""
    target: str
    """Name of the language to translate into."""
    train: TwoFiles
    """Source and target file of the training pairs."""
    valid: TwoFiles | None = None
    """Source and target file of the validation pairs; without, they are taken from `train` by a hash."""
    test: TwoFiles | None = None
    """Source and target file of the test pairs; without, they are taken from `train` by a hash."""
    licence: str = "not stated"
    """The licence of the text, for the manifest."""

    @model_validator(mode="after")
    def _distinct(self) -> "LinePairs":
        named = [path for split in SPLITS for path in getattr(self, split) or ()]
        for path in named:
            if named.count(path) > 1:
                raise ValueError(f"{path} is named twice; every file stands in one place")
        return self

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the contents; None where a file is missing."""
        paths = {split: [_path(name) for name in getattr(self, split) or ()] for split in SPLITS}
        try:
            known = file_hashes((path for some in paths.values() for path in some), cache)
        except OSError:
            return None
        return fingerprint({split: [known[path] for path in some] for split, some in paths.items()})

    def search(self) -> None:
        """Raise UserError for a missing file."""
        for path in (path for split in SPLITS for path in getattr(self, split) or ()):
            if not _path(path).is_file():
                raise UserError(f"no file at '{path}' (working directory {Path.cwd()})")

    def read(self, split: Split) -> Iterator[Pair]:
        """Yield the pairs of the files of a split."""
        return read_pairs(*getattr(self, split))


def read_pairs(source: str, target: str) -> Iterator[Pair]:
    """Yield the lines of two files side by side.

    Raises UserError where a file is missing or not UTF-8, or where one has more lines than the other.
    """
    lines, others = _lines(_path(source)), _lines(_path(target))
    count = 0
    while True:
        left, right = next(lines, None), next(others, None)
        if left is None or right is None:
            break
        count += 1
        yield left, right
    if left is not None or right is not None:
        more, less = (source, target) if left is not None else (target, source)
        raise UserError(f"{less}: ends after line {count}, but {more} goes on; the lines of both must correspond")


def _lines(path: Path) -> Iterator[str]:
    try:
        # Only a line feed ends a line: other separators of Unicode occur inside sentences.
        with opened(path) as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.rstrip(b"\r\n").decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{path}: line {number} is not UTF-8 ({error.reason}); convert the file") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); name files that exist and are whole") from None


def _path(name: str) -> Path:
    return Path(name).expanduser()
