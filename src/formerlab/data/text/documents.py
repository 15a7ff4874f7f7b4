"""Documents on their way from a source to the token streams: divided, without repetitions, up to the limits."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from formerlab.data.dataset import DataSource
from formerlab.data.splitting import SPLITS, Digests, Shares, Split, digest
from formerlab.data.text.docstrings import Module
from formerlab.data.text.readers import parts
from formerlab.errors import UserError

if TYPE_CHECKING:
    from formerlab.data.text.prepare import TextData

BATCH_CHARACTERS = 1 << 20
"""About how much text a thread gets at a time."""

SAMPLED_SHARDS = 16


class Shard(NamedTuple):
    """A part of a source, which can be read again from its beginning."""

    name: str
    """Its name for messages: a file, a folder, a data set's split."""
    splits: tuple[Split, ...]
    """The splits its documents may go to: one if the source decides, several if each document's content decides."""
    documents: Callable[[], Iterator[str]]
    """Read the documents in a fixed order."""
    may_be_empty: bool = False
    """Whether it is no mistake that it holds no document."""


class Corpus(NamedTuple):
    """A source opened for reading."""

    shards: list[Shard]
    """All shards, those that are held out as a whole before those with training text."""
    test_modules: Iterable[Module] = ()
    """The test documents with their structure, for sources that have one: questions are made of them."""


class TextSource(DataSource, ABC):
    """Where documents come from."""

    @abstractmethod
    def open(self, shares: Shares) -> Corpus:
        """Open the source. Raises UserError, now or while reading, naming what is missing, empty or unreadable."""

    def notes(self) -> list[str]:
        """Return notes on what the source has and does not give."""
        return []

    def by_paragraph(self) -> "TextSource | None":
        """Return the same text with paragraphs as documents, if its documents are whole files."""
        return None


class Deduplicator:
    """Reads shards once, divides their documents, drops repeated ones and stops where the splits are full.

    Held-out shards come first, so a training document that repeats one of theirs is dropped. Where content decides,
    equal documents meet in one split by construction.
    """

    def __init__(self, data: "TextData") -> None:
        self.duplicates = 0
        self.limited: set[Split] = set()
        """The splits that would have more text without their limit."""
        self._shares = data.shares
        self._limits = {"train": data.max_bytes, "valid": data.max_held_out_bytes, "test": data.max_held_out_bytes}
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._seen = Digests()

    def documents(self, shards: list[Shard]) -> Iterator[tuple[Split, str]]:
        """Yield documents with their splits. Raises UserError naming a shard without text."""
        for shard in shards:
            if self._enough_of(shard):
                continue
            blank = True
            for text in shard.documents():
                if not text or text.isspace():
                    continue
                if not blank and self._enough_of(shard):
                    break
                blank = False
                for part in parts(text):
                    yield from self._taken(part, shard)
            if blank and not shard.may_be_empty:
                raise UserError(f"{shard.name}: holds no text")

    def _taken(self, text: str, shard: Shard) -> Iterator[tuple[Split, str]]:
        mark = digest(text)
        split = self._shares.split(mark, shard.splits)
        if not self._seen.add(mark):
            self.duplicates += 1
        elif self._full(split):
            self.limited.add(split)
        else:
            self._bytes[split] += len(text.encode())
            yield split, text

    def _full(self, split: Split) -> bool:
        limit = self._limits[split]
        return limit is not None and self._bytes[split] >= limit

    def _enough_of(self, shard: Shard) -> bool:
        """Whether training text is complete and something is held out, or the held-out streams are full."""
        if "train" in shard.splits:
            enough = self._full("train") and all(self._bytes[split] for split in shard.splits)
        else:
            enough = all(self._full(split) for split in shard.splits)
        if enough:
            self.limited.update(filter(self._full, shard.splits))
        return enough


def without_documents(shards: list[Shard], data: "TextData") -> tuple[list[Split], int, int]:
    """Return the splits that the documents of the shards leave empty, how many documents were divided, and how many
    repeat others.

    Reads no further than until every split has one. A shard that belongs to one split is taken to hold some text.
    """
    found, count = {shard.splits[0] for shard in shards if len(shard.splits) == 1}, 0
    deduplicator = Deduplicator(data)
    documents = deduplicator.documents([shard for shard in shards if len(shard.splits) > 1])
    while len(found) < len(SPLITS) and (document := next(documents, None)):
        found.add(document[0])
        count += 1
    return [split for split in SPLITS if split not in found], count, deduplicator.duplicates


def batches(documents: Iterator[tuple[Split, str]]) -> Iterator[tuple[Split, list[str]]]:
    """Gather the documents of each split, in order, into batches of about `BATCH_CHARACTERS`."""
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
    """Yield up to `size` bytes of training text, evenly from up to 16 shards spread over the source."""
    # It knows what is held out. Of a document only the beginning is taken here, so limits in bytes are for later.
    deduplicator = Deduplicator(data.model_copy(update={"max_bytes": None}))
    deque(deduplicator.documents([shard for shard in shards if "train" not in shard.splits]), maxlen=0)
    training = [shard for shard in shards if "train" in shard.splits]
    count = min(SAMPLED_SHARDS, len(training))
    for index in range(count):
        left = size // count
        for split, text in deduplicator.documents([training[index * len(training) // count]]):
            if split == "train":
                content = text.encode()[:left]
                yield content.decode("utf-8", "ignore")
                left -= len(content)
            if left <= 0:
                break
