"""Sentence pairs from the Hugging Face hub."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from formerlab.data.hub import HubSource
from formerlab.data.pairs.source import Pair, PairSource
from formerlab.data.splitting import Split
from formerlab.errors import UserError


class HubPairs(HubSource, PairSource):
    """A translation data set of the hub, whose rows hold a mapping of language to sentence, such as wmt/wmt14."""

    division: ClassVar[str] = "by a hash of the source sentence"

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
        """Yield the rows of a split."""
        for row in self.rows(getattr(self, split)):
            try:
                pair = row[self.column]
                yield pair[self.source], pair[self.target]
            except (KeyError, TypeError):
                raise UserError(
                    f"hub {self.name}: a row has no {self.column}.{self.source} and {self.column}.{self.target} but "
                    f"{', '.join(row)}; set source.column, source.source or source.target"
                ) from None
