"""Assign items to splits by a hash, and detect duplicates."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

Split = Literal["train", "valid", "test"]

SPLITS: tuple[Split, ...] = ("train", "valid", "test")

_WHITE_SPACE = b" \t\n\r\v\f"


@dataclass(frozen=True)
class SplitFractions:
    """Fractions of items for validation and test that a hash of the content assigns."""

    valid: float
    test: float

    def split(self, digest: int, candidates: tuple[Split, ...]) -> Split:
        """Return the split of a 64-bit digest: test for the lowest digests, valid for the next, otherwise train.

        Splits that are not in `candidates` are never returned.
        """
        position = digest / 2**64
        if "test" in candidates and position < self.test:
            return "test"
        if "valid" in candidates and self.test <= position < self.test + self.valid:
            return "valid"
        return "train" if "train" in candidates else candidates[0]


def digest(text: str) -> int:
    """Return a 64-bit hash of a text without its white space."""
    content = text.encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


class Digests:
    """A set of 64-bit digests that uses 8 bytes per digest.

    Two of n different texts have the same digest with probability n^2 / 2^65: 2e-5 for 27 million documents.
    """

    def __init__(self, recent: int = 1 << 20) -> None:
        """Collect `recent` digests in a Python set before packing them into a sorted array."""
        self._limit = recent
        self._recent: set[int] = set()
        self._packed = np.empty(0, dtype=np.uint64)

    def add(self, value: int) -> bool:
        """Add a digest; return whether it is new."""
        index = int(np.searchsorted(self._packed, np.uint64(value)))
        if value in self._recent or (index < len(self._packed) and int(self._packed[index]) == value):
            return False
        self._recent.add(value)
        if len(self._recent) >= self._limit:
            self._packed = np.sort(np.concatenate((self._packed, np.fromiter(self._recent, dtype=np.uint64))))
            self._recent.clear()
        return True
