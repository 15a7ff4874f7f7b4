"""Sentence pairs of a prepared split, by number, and the batches that they fall into by length."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formerlab.data.manifest import REMEDY, read_manifest
from formerlab.data.text.streams import load_stream
from formerlab.errors import UserError

Numbers = NDArray[np.int64]


class PairStream:
    """The pairs of a split: token arrays, each with its end, read from the memory-mapped stream."""

    def __init__(self, tokens: NDArray[np.unsignedinteger], end: int) -> None:
        """Find where sentences end. Raises UserError where a source has no translation."""
        self._ends = np.flatnonzero(tokens == end) + 1
        if len(self._ends) % 2 or not len(self._ends):
            raise UserError(f"a stream of pairs holds an even number of sentences; {REMEDY}")
        self.tokens, self.end = tokens, end
        self._starts = np.concatenate(([0], self._ends[:-1]))
        lengths = self._ends - self._starts
        self.source_lengths, self.target_lengths = lengths[0::2], lengths[1::2]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source_lengths)

    def sentence(self, pair: int, side: int) -> Numbers:
        """Return the tokens of a source (side 0) or target (side 1) sentence, its end included."""
        index = 2 * pair + side
        return np.asarray(self.tokens[self._starts[index] : self._ends[index]], dtype=np.int64)

    def batches(self, tokens: int, random: np.random.Generator | None = None) -> list[Numbers]:
        """Return pairs of like length, so many that each side, padded, has at most `tokens` tokens.

        Pairs are sorted by the longer of their sides; `random` decides among equals and then the order of the batches.
        The number and sizes of the batches do not depend on it. Raises UserError where one pair is too long.
        """
        longer = np.maximum(self.source_lengths, self.target_lengths)
        if longer.max() > tokens:
            raise UserError(
                f"task.tokens={tokens} is less than the {longer.max()} tokens of the longest sentence; raise it"
            )
        ties = random.random(len(self)) if random is not None else np.zeros(len(self))
        order = np.lexsort((ties, longer))
        ordered, found, start = longer[order], [], 0
        while start < len(order):
            most = min(len(order), start + tokens // int(ordered[start]))
            sizes = np.arange(1, most - start + 1) * ordered[start:most]
            stop = start + int(np.searchsorted(sizes, tokens, side="right"))
            found.append(order[start:stop])
            start = stop
        return found if random is None else [found[number] for number in random.permutation(len(found))]

    @lru_cache(maxsize=2)  # noqa: B019 a stream lives as long as the process
    def epoch(self, tokens: int, seed: int, epoch: int) -> list[Numbers]:
        """Return the batches of an epoch, pure in (pairs, tokens, seed, epoch)."""
        return self.batches(tokens, np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, epoch])))

    @lru_cache(maxsize=2)  # noqa: B019
    def epoch_size(self, tokens: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self.batches(tokens))


def load_pairs(folder: Path, split: str) -> PairStream:
    """Return a split of prepared pairs. Raises UserError where its files are missing or damaged."""
    return PairStream(load_stream(folder, split), read_manifest(folder)["tokenizer"]["end_of_text"])
