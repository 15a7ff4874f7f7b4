"""Which split an item goes to, and whether it is a repetition."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np

Split = Literal["train", "valid", "test"]

SPLITS: tuple[Split, ...] = ("train", "valid", "test")

_WHITE_SPACE = b" \t\n\r\v\f"


@dataclass(frozen=True)
class Shares:
    """How items are divided where their content decides."""

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


class Digests:
    """The set of digests met so far, at 8 bytes each once they are many.

    Two different texts share a digest with probability n^2 / 2^65: 2e-5 for 27 million documents.
    """

    def __init__(self, recent: int = 1 << 20) -> None:
        """Hold up to `recent` digests in a Python set before packing them."""
        self._limit = recent
        self._recent: set[int] = set()
        self._packed = np.empty(0, dtype=np.uint64)

    def add(self, value: int) -> bool:
        """Add a digest; return whether it is new."""
        at = int(np.searchsorted(self._packed, np.uint64(value)))
        if value in self._recent or (at < len(self._packed) and int(self._packed[at]) == value):
            return False
        self._recent.add(value)
        if len(self._recent) >= self._limit:
            self._packed = np.sort(np.concatenate((self._packed, np.fromiter(self._recent, dtype=np.uint64))))
            self._recent.clear()
        return True
