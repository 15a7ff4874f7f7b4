"""What every source of sentence pairs answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import Shares, Split, digest

Pair = tuple[str, str]
"""A sentence and its translation."""


class PairSource(DataSource, ABC):
    """Where pairs of a sentence and its translation come from."""

    @abstractmethod
    def pairs(self, split: Split, shares: Shares) -> Iterator[Pair]:
        """Yield the pairs of a split in a fixed order. Raises UserError for what is missing or does not fit."""


def pairs_of(split: Split, pairs: Iterator[Pair], candidates: tuple[Split, ...], shares: Shares) -> Iterator[Pair]:
    """Yield the pairs that fall into a split by a hash of their source sentence: equal sentences meet in one split."""
    return (pair for pair in pairs if shares.split(digest(pair[0]), candidates) == split)
