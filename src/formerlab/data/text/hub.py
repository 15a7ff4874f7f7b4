"""Text from the Hugging Face hub."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

from formerlab.data.hub import HubSource
from formerlab.data.splitting import Shares, Split
from formerlab.data.text.documents import Corpus, Shard, TextSource
from formerlab.data.text.readers import text_of
from formerlab.data.workers import Workers


class Hub(HubSource, TextSource):
    """A data set of the hub, or any folder that `datasets.load_dataset` understands.

    Without network (HF_HUB_OFFLINE=1) it is read from the cache, where an earlier run left it.
    """

    kind: Literal["hub"] = "hub"
    column: str = "text"
    """The column that holds the text."""
    streaming: bool = False
    """Whether to read over the network without a copy on disk."""

    def open(self, shares: Shares, workers: Workers) -> Corpus:
        """Return one shard per split of the data set, the held-out ones first."""
        held: list[Split] = [split for split in ("test", "valid") if getattr(self, split) is not None]
        named = [(getattr(self, split), (split,)) for split in held] + [(self.train, self.divided())]
        return Corpus([Shard(f"{self.name} ({theirs})", ours, partial(self._texts, theirs)) for theirs, ours in named])

    def _texts(self, split: str) -> Iterator[str]:
        for value in self.values(split, self.column, streaming=self.streaming):
            yield text_of(value, f"hub {self.name}", self.column)
