"""What every source of sentence pairs answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from formerlab.data.shards import Shares, Split, digest
from formerlab.spec import Spec

Pair = tuple[str, str]
"""A sentence and its translation."""


class PairSource(Spec, ABC):
    """Where pairs of a sentence and its translation come from."""

    @abstractmethod
    def state(self, cache: Path | None = None) -> str | None:
        """Return 16 hexadecimal digits that change when the pairs would; None where they cannot be seen now."""

    @abstractmethod
    def recipe(self) -> dict[str, object]:
        """Return the settings that shape the pairs, without the places they lie at."""

    @abstractmethod
    def pairs(self, split: Split, shares: Shares) -> Iterator[Pair]:
        """Yield the pairs of a split in a fixed order. Raises UserError for what is missing or does not fit."""

    @abstractmethod
    def split_rule(self, shares: Shares) -> str:
        """Say in one sentence how pairs are divided."""

    @abstractmethod
    def licence_notice(self) -> str:
        """Return the licence of the text, as its owner or the config states it."""

    def versions(self) -> dict[str, str]:
        """Return the versions of packages whose own text is read."""
        return {}


def divided(pairs: Iterator[Pair], split: Split, candidates: tuple[Split, ...], shares: Shares) -> Iterator[Pair]:
    """Yield the pairs that fall into a split by a hash of their source sentence: equal sentences meet in one split."""
    return (pair for pair in pairs if shares.split(digest(pair[0]), candidates) == split)
