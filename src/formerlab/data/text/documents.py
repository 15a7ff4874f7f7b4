"""Split the documents of a source, drop duplicates and apply size limits."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import SPLITS, Digests, Split, SplitFractions, digest
from formerlab.data.text.docstrings import Module
from formerlab.data.text.readers import split_text
from formerlab.errors import UserError

if TYPE_CHECKING:
    from formerlab.data.text.prepare import TextData

BATCH_CHARACTERS = 1 << 20
"""Approximate number of characters per batch for a thread."""

SAMPLED_SHARDS = 16


class Shard(NamedTuple):
    """A piece of a source that can be read several times, for example a file."""

    name: str
    """Name for messages: a file, a folder or the split of a data set."""
    splits: tuple[Split, ...]
    """Possible splits of its documents: one if the source names the split, several if a hash assigns it."""
    documents: Callable[[], Iterator[str]]
    """Reads the documents in a fixed order."""


class Corpus(NamedTuple):
    """An opened source."""

    shards: list[Shard]
    """All shards; shards without training text come first."""
    test_modules: Iterable[Module] = ()
    """The test documents of the source `embedded`, from which questions are made."""


class TextSource(DataSource, ABC):
    """A source of documents."""

    @abstractmethod
    def open(self, fractions: SplitFractions) -> Corpus:
        """Open the source. Missing, empty or unreadable files raise UserError here or when they are read."""

    def by_paragraph(self) -> "TextSource | None":
        """Return this source with paragraphs as documents, or None if its documents are not text files."""
        return None


class Deduplicator:
    """Reads shards, assigns their documents to splits, drops duplicates, and stops when the splits are full.

    Held-out shards come first, so that a training document equal to a held-out document is dropped.
    """

    def __init__(self, data: "TextData") -> None:
        self.duplicates = 0
        self.limited: set[Split] = set()
        """Splits that are cut by their size limit."""
        self._fractions = data.fractions
        self._limits = {"train": data.max_bytes, "valid": data.max_held_out_bytes, "test": data.max_held_out_bytes}
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._seen = Digests()

    def documents(self, shards: list[Shard]) -> Iterator[tuple[Split, str]]:
        """Yield documents with their splits. Raises UserError with the name of a shard without text."""
        for shard in shards:
            if self._is_complete(shard):
                continue
            blank = True
            for text in shard.documents():
                if not text or text.isspace():
                    continue
                if not blank and self._is_complete(shard):
                    break
                blank = False
                for piece in split_text(text):
                    yield from self._accepted(piece, shard)
            if blank:
                raise UserError(f"{shard.name}: contains no text")

    def _accepted(self, text: str, shard: Shard) -> Iterator[tuple[Split, str]]:
        """Yield a document with its split unless it is a duplicate or its split is full."""
        text_hash = digest(text)
        split = self._fractions.split(text_hash, shard.splits)
        if not self._seen.add(text_hash):
            self.duplicates += 1
        elif self._full(split):
            self.limited.add(split)
        else:
            self._bytes[split] += len(text.encode())
            yield split, text

    def _full(self, split: Split) -> bool:
        limit = self._limits[split]
        return limit is not None and self._bytes[split] >= limit

    def _is_complete(self, shard: Shard) -> bool:
        """Return whether a shard is complete; if so, add its full splits to `limited`.

        A shard with training text is complete if the training split is full and no split of the shard is empty. Other
        shards are complete if all their splits are full.
        """
        if "train" in shard.splits:
            complete = self._full("train") and all(self._bytes[split] for split in shard.splits)
        else:
            complete = all(self._full(split) for split in shard.splits)
        if complete:
            self.limited.update(filter(self._full, shard.splits))
        return complete


def empty_splits(shards: list[Shard], data: "TextData") -> tuple[list[Split], int, int]:
    """Return the splits without documents, the number of documents, and the number of their duplicates.

    Reading stops when every split has a document. A shard with a single split is assumed to contain text.
    """
    filled, count = {shard.splits[0] for shard in shards if len(shard.splits) == 1}, 0
    deduplicator = Deduplicator(data)
    documents = deduplicator.documents([shard for shard in shards if len(shard.splits) > 1])
    while len(filled) < len(SPLITS) and (document := next(documents, None)):
        filled.add(document[0])
        count += 1
    return [split for split in SPLITS if split not in filled], count, deduplicator.duplicates


def batches(documents: Iterator[tuple[Split, str]]) -> Iterator[tuple[Split, list[str]]]:
    """Collect the documents of each split, in order, in batches of about `BATCH_CHARACTERS`."""
    waiting: dict[Split, list[str]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)
    for split, text in documents:
        waiting[split].append(text)
        sizes[split] += len(text)
        if sizes[split] >= BATCH_CHARACTERS:
            yield split, waiting[split]
            waiting[split], sizes[split] = [], 0
    yield from ((split, texts) for split, texts in waiting.items() if texts)


def training_sample(shards: list[Shard], data: "TextData", size: int) -> Iterator[str]:
    """Yield up to `size` bytes of training text, in equal amounts from up to 16 shards spread over the source."""
    # Held-out shards are read first, so that their text is not sampled.
    deduplicator = Deduplicator(data.model_copy(update={"max_bytes": None}))
    deque(deduplicator.documents([shard for shard in shards if "train" not in shard.splits]), maxlen=0)
    training = [shard for shard in shards if "train" in shard.splits]
    count = min(SAMPLED_SHARDS, len(training))
    for index in range(count):
        remaining = size // count
        for split, text in deduplicator.documents([training[index * len(training) // count]]):
            if split == "train":
                content = text.encode()[:remaining]
                yield content.decode("utf-8", "ignore")
                remaining -= len(content)
            if remaining <= 0:
                break
