"""What every source of text answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from formerlab.data.docstrings import Module
from formerlab.data.shards import Shard, Shares
from formerlab.data.workers import Workers
from formerlab.spec import Spec


@dataclass(frozen=True)
class Corpus:
    """A source opened for reading."""

    shards: list[Shard]
    """Everything to be read, the shards held out for certain before those with training text."""
    test_modules: Iterable[Module] = ()
    """The test documents with their structure, where the source has any: questions are made of them."""


class TextSource(Spec, ABC):
    """Where documents come from."""

    @abstractmethod
    def state(self, cache: Path | None = None) -> str | None:
        """Return 16 hexadecimal digits that change when the text would; None where the source cannot be seen now.

        Reads no network. `cache` names a file that remembers the contents of unchanged files.
        """

    @abstractmethod
    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Open the source. Raises UserError, now or while reading, naming what is missing, empty or unreadable."""

    @abstractmethod
    def recipe(self) -> dict[str, object]:
        """Return the settings that shape the text, without the places it lies at."""

    @abstractmethod
    def split_rule(self, shares: Shares) -> str:
        """Say in one sentence how documents are divided."""

    @abstractmethod
    def licence_notice(self) -> str:
        """Return the licence of the text, as its owner or the config states it."""

    def versions(self) -> dict[str, str]:
        """Return the versions of packages whose own text is read."""
        return {}
