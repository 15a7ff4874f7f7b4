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
    def read(self, split: Split) -> Iterator[Pair]:
        """Yield the pairs of a split as the source has them, in a fixed order.

        Raises UserError for what is missing or does not fit.
        """

    def pairs(self, split: Split, shares: Shares) -> Iterator[Pair]:
        """Yield the pairs of a split; those divided by a hash of their source sentence, so that equal ones meet."""
        if split not in self.divided():
            return self.read(split)
        found = self.read("train")
        return (pair for pair in found if shares.split(digest(pair[0]), self.divided()) == split)
