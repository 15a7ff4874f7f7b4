"""Text from the Hugging Face hub."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from formerlab.data.hub import HubSource
from formerlab.data.splitting import Shard, Shares, Split
from formerlab.data.text.readers import text_of
from formerlab.data.text.source import Corpus, TextSource
from formerlab.data.workers import Workers
from formerlab.errors import UserError

ROWS = 1000
"""Rows read at a time."""


class Hub(HubSource, TextSource):
    """A data set of the hub, or any folder that `datasets.load_dataset` understands.

    Without network (HF_HUB_OFFLINE=1) it is read from the cache, where an earlier run left it.
    """

    kind: Literal["hub"] = "hub"
    column: str = "text"
    """The column that holds the text."""
    streaming: bool = False
    """Whether to read over the network without keeping a copy."""

    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Return one shard per split of the data set, the held-out ones first."""
        held: list[Split] = [split for split in ("test", "valid") if getattr(self, split) is not None]
        named = [(getattr(self, split), (split,)) for split in held] + [(self.train, self.divided())]
        return Corpus([Shard(f"{self.name} ({theirs})", ours, partial(self._texts, theirs)) for theirs, ours in named])

    def _texts(self, split: str) -> Iterator[str]:
        rows = self.rows(split, streaming=self.streaming)
        with self.reading(split):
            self._check_column(rows)
            for batch in rows.select_columns([self.column]).iter(ROWS):
                for value in batch[self.column]:
                    yield text_of(value, f"hub {self.name}", self.column)

    def _check_column(self, rows: Any) -> None:
        names = rows.column_names or list(next(iter(rows), {}))
        if self.column not in names:
            raise UserError(f"hub {self.name}: no column '{self.column}' among {', '.join(names)}; set source.column")
