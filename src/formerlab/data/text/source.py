"""What every source of text answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import Shard, Shares
from formerlab.data.text.docstrings import Module
from formerlab.data.workers import Workers


@dataclass(frozen=True)
class Corpus:
    """A source opened for reading."""

    shards: list[Shard]
    """Everything to be read, the shards held out for certain before those with training text."""
    test_modules: Iterable[Module] = ()
    """The test documents with their structure, where the source has any: questions are made of them."""


class TextSource(DataSource, ABC):
    """Where documents come from."""

    @abstractmethod
    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Open the source. Raises UserError, now or while reading, naming what is missing, empty or unreadable."""

    def check_division(self, shares: Shares) -> None:
        """Raise UserError as `search` does, and where it is known already that a split stays empty."""
        self.search()

    def by_paragraph(self) -> "TextSource | None":
        """Return the same text with paragraphs as its documents, where these are whole files now."""
        return None
