"""Prepared sentence pairs, accessed by index, and batches of pairs of similar length."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formerlab.data.manifest import REMEDY, read_manifest
from formerlab.data.text.streams import load_stream
from formerlab.errors import UserError

Numbers = NDArray[np.int64]


class PairStream:
    """The pairs of a split, read from a memory-mapped token stream."""

    def __init__(self, tokens: NDArray[np.unsignedinteger], end: int) -> None:
        """Locate the sentences, which end with the token `end`. Raises UserError if their number is 0 or odd."""
        self._ends = np.flatnonzero(tokens == end) + 1
        if len(self._ends) % 2 or not len(self._ends):
            raise UserError(f"a stream of pairs must have an even number of sentences; {REMEDY}")
        self.tokens, self.end = tokens, end
        self._starts = np.concatenate(([0], self._ends[:-1]))
        lengths = self._ends - self._starts
        self.source_lengths, self.target_lengths = lengths[0::2], lengths[1::2]
        self.longest = int(lengths.max())

    def __len__(self) -> int:
        return len(self.source_lengths)

    def sentence(self, pair: int, side: int) -> Numbers:
        """Return the tokens of the source (side 0) or target (side 1) sentence of a pair, including its end."""
        index = 2 * pair + side
        return np.asarray(self.tokens[self._starts[index] : self._ends[index]], dtype=np.int64)

    def batches(self, tokens: int, random: np.random.Generator | None = None) -> list[Numbers]:
        """Return batches of pairs of similar length; each padded side of a batch has at most `tokens` tokens.

        Pairs are sorted by their longer side. `random` orders pairs of equal length and shuffles the batches; it does
        not change the number or the sizes of the batches. Raises UserError if a pair is too long.
        """
        if self.longest > tokens:
            raise UserError(f"task.tokens={tokens}: the longest sentence has {self.longest} tokens; raise it")
        longer = np.maximum(self.source_lengths, self.target_lengths)
        ties = random.random(len(self)) if random is not None else np.zeros(len(self))
        order = np.lexsort((ties, longer))
        lengths, batches, start = longer[order], [], 0
        while start < len(order):
            last = min(len(order), start + tokens // int(lengths[start]))
            sizes = np.arange(1, last - start + 1) * lengths[start:last]
            stop = start + int(np.searchsorted(sizes, tokens, side="right"))
            batches.append(order[start:stop])
            start = stop
        return batches if random is None else [batches[index] for index in random.permutation(len(batches))]

    @lru_cache(maxsize=2)  # noqa: B019 a stream lives as long as the process
    def epoch(self, tokens: int, seed: int, epoch: int) -> list[Numbers]:
        """Return the shuffled batches of an epoch."""
        return self.batches(tokens, np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, epoch])))

    @lru_cache(maxsize=2)  # noqa: B019
    def batches_per_epoch(self, tokens: int) -> int:
        return len(self.batches(tokens))


def load_pairs(folder: Path, split: str) -> PairStream:
    """Return a split of prepared pairs. Raises UserError if its files are missing or damaged."""
    return PairStream(load_stream(folder, split), read_manifest(folder)["tokenizer"]["end_of_text"])
