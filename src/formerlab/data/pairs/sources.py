"""Where sentence pairs come from: files of lines, or the Hugging Face hub."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import model_validator

from formerlab.data.dataset import DataSource
from formerlab.data.file_hashes import file_hashes
from formerlab.data.hub import HubSource
from formerlab.data.splitting import SPLITS, Shares, Split, digest
from formerlab.data.text.readers import opened, text_of
from formerlab.errors import UserError
from formerlab.file_search import expanded
from formerlab.spec import fingerprint

Pair = tuple[str, str]
"""A sentence and its translation."""


class PairSource(DataSource, ABC):
    """Where pairs of a sentence and its translation come from."""

    @abstractmethod
    def read(self, split: Split) -> Iterator[Pair]:
        """Yield the pairs of a split as the source has them, in a fixed order.

        Raises UserError for what is missing or does not fit.
        """

    def pairs(self, split: Split, shares: Shares) -> Iterator[Pair]:
        """Yield the pairs of a split; a hash of the source sentence divides them, so equal ones stay together."""
        if split not in self.divided():
            return self.read(split)
        found = self.read("train")
        return (pair for pair in found if shares.split(digest(pair[0]), self.divided()) == split)


TwoFiles = tuple[str, str]
"""The file of the source language and that of the target language."""


class LinePairs(PairSource):
    """Two plain text files a split, one sentence a line, in UTF-8, packed (.gz .bz2 .xz .zst) or not."""

    outside_recipe: ClassVar[set[str]] = {"train", "valid", "test", "licence"}

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
        named = self._files()
        for path in named:
            if named.count(path) > 1:
                raise ValueError(f"{path} is named twice; every file stands in one place")
        return self

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of the contents; None where a file is missing."""
        try:
            known = file_hashes(self._files(), cache)
        except OSError:
            return None
        return fingerprint({split: [known[path] for path in self._files(split)] for split in SPLITS})

    def search(self) -> None:
        for path in self._files():
            if not path.is_file():
                raise UserError(f"no file at '{path}' (working directory {Path.cwd()})")

    def read(self, split: Split) -> Iterator[Pair]:
        return read_pairs(*self._files(split))

    def _files(self, *splits: Split) -> list[Path]:
        return [expanded(name) for split in splits or SPLITS for name in getattr(self, split) or ()]


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the lines of two files side by side.

    Raises UserError where a file is missing or not UTF-8, or where one has more lines than the other.
    """
    for number, (left, right) in enumerate(zip_longest(_lines(source), _lines(target))):
        if left is None or right is None:
            more, less = (target, source) if left is None else (source, target)
            raise UserError(f"{less}: ends after line {number}, but {more} goes on; the lines of both must correspond")
        yield left, right


def _lines(path: Path) -> Iterator[str]:
    # Only a line feed ends a line: other separators of Unicode occur inside sentences.
    with opened(path, newline="\n") as file:
        yield from (line.rstrip("\r\n") for line in file)


class HubPairs(HubSource, PairSource):
    """A translation data set of the hub, whose rows hold a mapping of language to sentence, such as wmt/wmt14."""

    kind: Literal["hub"] = "hub"
    source: str
    """Language to translate from."""
    target: str
    """Language to translate into."""
    valid: str | None = "validation"
    """Its split for validation; null takes pairs from `train` by a hash."""
    test: str | None = "test"
    """Its split for the test; null takes pairs from `train` by a hash."""
    column: str = "translation"
    """The column that holds the pair."""

    def read(self, split: Split) -> Iterator[Pair]:
        for number, pair in enumerate(self.values(getattr(self, split), self.column), 1):
            where = f"hub {self.name}, row {number}"
            if not isinstance(pair, dict) or not pair.keys() >= {self.source, self.target}:
                raise UserError(
                    f"{where}: no {self.column}.{self.source} and {self.column}.{self.target}; "
                    "set source.column, source.source or source.target"
                )
            yield text_of(pair[self.source], where, self.source), text_of(pair[self.target], where, self.target)
