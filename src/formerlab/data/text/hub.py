"""Text from the Hugging Face hub, through the `datasets` library and its cache."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from formerlab.data.origin import rule_of
from formerlab.data.source import Corpus, TextSource
from formerlab.data.text.hub_splits import named_splits, reading
from formerlab.data.text.readers import text_of
from formerlab.data.text.shards import SPLITS, Shard, Shares, Split
from formerlab.data.text.workers import Workers
from formerlab.errors import UserError
from formerlab.spec import fingerprint

ROWS = 1000
"""Rows read at a time."""


class Hub(TextSource):
    """A data set of the hub, or any folder that `datasets.load_dataset` understands.

    Without network (HF_HUB_OFFLINE=1) it is read from the cache, where an earlier run left it.
    """

    kind: Literal["hub"] = "hub"
    name: str
    """Name on the hub, `owner/name`, or a folder."""
    subset: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Commit, tag or branch; name a commit for text that can never change."""
    train: str = "train"
    """The data set's split to train on."""
    valid: str | None = None
    """Its split for validation; without one, documents are taken from `train` by a hash of their content."""
    test: str | None = None
    """Its split for the test; without one, documents are taken from `train` by a hash of their content."""
    column: str = "text"
    """The column that holds the text."""
    streaming: bool = False
    """Whether to read over the network without keeping a copy."""
    licence: str = "as stated on the data set's page"
    """The licence of the text, for the manifest."""

    def state(self, cache: Path | None = None) -> str | None:
        """Return the fingerprint of name and revision: what the hub holds is not looked up."""
        return fingerprint([self.name, self.subset, self.revision])

    def recipe(self) -> dict[str, object]:
        """Return all settings but the licence and the way it is read."""
        return self.model_dump(mode="json", exclude={"licence", "streaming"})

    def split_rule(self, shares: Shares) -> str:
        """Say how documents are divided."""
        return rule_of(named_splits(self), shares, "by document: BLAKE2b of its content")

    def licence_notice(self) -> str:
        """Return the licence that the config states."""
        return self.licence

    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Return one shard per split of the data set, the held-out ones first."""
        taken = tuple(split for split in SPLITS if split == "train" or getattr(self, split) is None)
        held: list[Split] = [split for split in ("test", "valid") if getattr(self, split) is not None]
        named = [(getattr(self, split), (split,)) for split in held] + [(self.train, taken)]
        return Corpus([Shard(f"{self.name} ({theirs})", ours, partial(self._texts, theirs)) for theirs, ours in named])

    def _texts(self, split: str) -> Iterator[str]:
        import datasets

        with reading(self.name, split):
            rows = datasets.load_dataset(
                self.name, self.subset, revision=self.revision, split=split, streaming=self.streaming
            )
            self._check_column(rows)
            for batch in rows.select_columns([self.column]).iter(ROWS):
                for value in batch[self.column]:
                    yield text_of(value, f"hub {self.name}", self.column)

    def _check_column(self, rows: Any) -> None:
        names = rows.column_names or list(next(iter(rows), {}))
        if self.column not in names:
            raise UserError(f"hub {self.name}: no column '{self.column}' among {', '.join(names)}; set source.column")
