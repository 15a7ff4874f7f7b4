"""Documents on their way from a source to the token streams: where they go, and which came before."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from itertools import tee
from typing import Generic, Literal, TypeVar

import numpy as np

Item = TypeVar("Item")

Split = Literal["train", "valid", "test"]

SPLITS: tuple[Split, ...] = ("train", "valid", "test")

DOCUMENT_CHARACTERS = 4 << 20
"""A longer document is cut at white space into parts of at most this size, so that memory stays constant."""

_WHITE_SPACE = b" \t\n\r\v\f"


@dataclass(frozen=True)
class Shard:
    """A part of a source that can be read, again and again, from its beginning."""

    name: str
    """What a person calls it: a file, a folder, a data set's split."""
    splits: tuple[Split, ...]
    """The splits its documents may go to: one if the source decides, several if each document's content decides."""
    documents: Callable[[], Iterator[str]]
    """Read the documents in a fixed order."""


@dataclass(frozen=True)
class Shares:
    """How documents are divided when nothing but their content decides."""

    valid: float
    test: float

    def split(self, digest: int, candidates: tuple[Split, ...]) -> Split:
        """Return the candidate on which the 64-bit digest falls: test lowest, then valid, train for the rest."""
        position = digest / 2**64
        if "test" in candidates and position < self.test:
            return "test"
        if "valid" in candidates and self.test <= position < self.test + self.valid:
            return "valid"
        return "train" if "train" in candidates else candidates[0]


def digest(text: str) -> int:
    """Return 64 bits that identify a text regardless of its white space."""
    content = text.encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


class Replay(Generic[Item]):
    """Items that can be read again from the beginning; what was read once is kept in memory."""

    def __init__(self, items: Iterator[Item]) -> None:
        (self._items,) = tee(items, 1)

    def __iter__(self) -> Iterator[Item]:
        return copy(self._items)


class Seen:
    """The set of digests met so far, at 8 bytes each once they are many.

    Two different texts share a digest with probability n^2 / 2^65: 2e-5 for 27 million documents.
    """

    def __init__(self, recent: int = 1 << 20) -> None:
        """Keep up to `recent` digests in a Python set before packing them."""
        self._limit = recent
        self._recent: set[int] = set()
        self._packed = np.empty(0, dtype=np.uint64)

    def __contains__(self, value: int) -> bool:
        """Whether the digest was added."""
        if value in self._recent:
            return True
        at = int(np.searchsorted(self._packed, np.uint64(value)))
        return at < len(self._packed) and int(self._packed[at]) == value

    def add(self, value: int) -> bool:
        """Add a digest; return whether it is new."""
        if value in self:
            return False
        self._recent.add(value)
        if len(self._recent) >= self._limit:
            fresh = np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent))
            self._packed = np.sort(np.concatenate((self._packed, fresh)))
            self._recent.clear()
        return True


def parts(text: str, limit: int = DOCUMENT_CHARACTERS) -> Iterator[str]:
    """Cut a text into parts of at most `limit` characters, each cut lying before white space where there is any.

    A cut there keeps the tokens of byte-level BPE as they would be without it.
    """
    start = 0
    while len(text) - start > limit:
        cut = last_break(text, start, start + limit)
        yield text[start:cut]
        start = cut
    yield text[start:]


def last_break(text: str, start: int, stop: int) -> int:
    """Return the last position in (start, stop] at which white space begins after something else; else `stop`."""
    position = stop
    while (position := max(text.rfind(" ", start + 1, position), text.rfind("\n", start + 1, position))) > start:
        if not text[position - 1].isspace():
            return position
    return stop
