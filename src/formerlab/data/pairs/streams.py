"""Sentence pairs of a prepared split, by number, and the batches that they fall into by length."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from formerlab.data.manifest import read_manifest
from formerlab.data.text.streams import load_stream
from formerlab.errors import UserError

Numbers = NDArray[np.int64]


class PairStream:
    """The pairs of a split: token arrays, each with its end, read from the memory-mapped stream."""

    def __init__(self, tokens: NDArray[np.unsignedinteger], end: int) -> None:
        """Find where sentences end. Raises ValueError where a source has no translation."""
        ends = np.flatnonzero(tokens == end) + 1
        if len(ends) % 2 or not len(ends):
            raise ValueError("a stream of pairs holds an even number of sentences")
        self.tokens, self.end = tokens, end
        self._starts = np.concatenate(([0], ends[:-1]))
        lengths = ends - self._starts
        self.source_lengths, self.target_lengths = lengths[0::2], lengths[1::2]
        self._epochs: dict[tuple[int, int, int], list[Numbers]] = {}
        self._sizes: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source_lengths)

    def sentence(self, pair: int, side: int) -> Numbers:
        """Return the tokens of a source (side 0) or target (side 1) sentence, its end included."""
        start = self._starts[2 * pair + side]
        length = (self.source_lengths, self.target_lengths)[side][pair]
        return np.asarray(self.tokens[start : start + length], dtype=np.int64)

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
        if random is not None:
            found = [found[place] for place in random.permutation(len(found))]
        return found

    def epoch(self, tokens: int, seed: int, epoch: int) -> list[Numbers]:
        """Return the batches of an epoch, pure in (pairs, tokens, seed, epoch); the last two are remembered."""
        key = (tokens, seed, epoch)
        if key not in self._epochs:
            for old in list(self._epochs)[:-1]:
                del self._epochs[old]
            random = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 1, epoch]))
            self._epochs[key] = self.batches(tokens, random)
        return self._epochs[key]

    def epoch_of(self, tokens: int, position: int) -> tuple[int, int]:
        """Return the epoch of a batch in the endless row of epochs, and its place in the epoch."""
        return divmod(position, self.epoch_size(tokens))

    def epoch_size(self, tokens: int) -> int:
        """Return the number of batches of an epoch."""
        if tokens not in self._sizes:
            self._sizes[tokens] = len(self.batches(tokens))
        return self._sizes[tokens]


def load_pairs(folder: Path, split: str) -> PairStream:
    """Return a split of prepared pairs. Raises UserError where its files are missing or damaged."""
    stream = load_stream(folder, split)
    try:
        return PairStream(stream, read_manifest(folder)["tokenizer"]["end_of_text"])
    except ValueError as error:
        raise UserError(f"{folder / split}.npy: {error}; run the data stage again") from None
