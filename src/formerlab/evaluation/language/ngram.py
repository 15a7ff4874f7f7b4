"""n-gram models with modified Kneser-Ney smoothing, interpolated (Chen & Goodman 1998, TR-10-98, section 3).

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h) + gamma(h) p(w | h without its first token)

with D of counts 1, 2, 3 and more from the counts of counts, and gamma(h) what was taken off. Below the highest order
c counts the different tokens in front. The last stop is the uniform distribution. No library that counts tokens at this
speed is on the package index: NLTK's is one discount and dictionaries, KenLM's wheels must be compiled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

FALLBACK = (0.5, 1.0, 1.5)
"""KenLM's discounts, for texts of a few words, where a count of counts is zero."""

Ids = NDArray[np.int64]


class Order(NamedTuple):
    """The n-grams of one length, sorted by their keys."""

    keys: Ids
    """Number of the n-gram without its last token (in the order below), times vocabulary, plus the last token."""
    discounted: Float[np.ndarray, " grams"]
    """Count less discount, by the count of the history."""
    left: Float[np.ndarray, " histories"]
    """gamma of each history; 1 where nothing followed it."""


class NGram:
    """A model of the highest order n, from the counts of one stream of tokens."""

    def __init__(self, stream: NDArray[np.unsignedinteger], order: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        tokens, grams = np.asarray(stream, dtype=np.int64), list[tuple[Ids, Ids]]()
        numbers = np.zeros_like(tokens)  # of the n-gram that starts at each token, one token shorter than the next
        for length in range(1, order + 1):
            keys = numbers[: len(tokens) - length + 1] * vocabulary + tokens[length - 1 :]
            known, first, longer, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            if grams:  # below the highest order, how many different n-grams end in a shorter one
                shorter, _ = grams[-1]
                grams[-1] = shorter, np.bincount(numbers[first + 1], minlength=len(shorter))
            grams.append((known, counts))
            numbers = longer
        above = [1, *(len(keys) for keys, _ in grams)]
        self.orders = [_order(keys, counts, vocabulary, n) for (keys, counts), n in zip(grams, above, strict=False)]

    def log_probabilities(self, windows: Int[np.ndarray, "windows time_plus_1"]) -> Float[np.ndarray, "windows time"]:
        """Return ln p of every token but the first of each window, from the tokens before it in the window alone."""
        tokens = windows.astype(np.int64)
        probabilities = np.full(tokens[:, 1:].shape, 1.0 / self.vocabulary)
        histories: Ids = np.zeros_like(tokens)  # number of the history that ends before each token, -1 where unknown
        for length, order in enumerate(self.orders, start=1):
            seen = np.where(histories >= 0, histories, 0)
            keys = seen * self.vocabulary + tokens
            places = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            found = (order.keys[places] == keys) & (histories >= 0)
            mixed = np.where(found, order.discounted[places], 0.0)[:, 1:] + order.left[seen[:, 1:]] * probabilities
            probabilities = np.where(histories[:, 1:] >= 0, mixed, probabilities)
            numbers = np.where(found, places, -1)
            histories = np.full_like(tokens, -1)
            histories[:, 1:] = numbers[:, :-1]
            histories[:, :length] = -1  # longer than what stands before the token in its window
        return np.asarray(np.log(probabilities))


def _order(keys: Ids, counts: Ids, vocabulary: int, histories: int) -> Order:
    below = keys // vocabulary
    taken = np.array([0.0, *discounts(counts)])[np.minimum(counts, 3)]
    total = np.bincount(below, counts, histories)
    left = np.divide(np.bincount(below, taken, histories), total, out=np.ones(histories), where=total > 0)
    return Order(keys, (counts - taken) / np.maximum(total, 1)[below], left)


def discounts(counts: Sequence[int] | Ids) -> tuple[float, float, float]:
    """Return D1, D2 and D3+ of the counts of n-grams (equation 26 of Chen & Goodman)."""
    ones, twos, threes, fours = (int(np.sum(np.asarray(counts) == count)) for count in (1, 2, 3, 4))
    if not (ones and twos and threes):
        return FALLBACK
    share = ones / (ones + 2 * twos)
    found = (1 - 2 * share * twos / ones, 2 - 3 * share * threes / twos, 3 - 4 * share * fours / threes)
    return tuple(min(max(value, 0.0), count) for value, count in zip(found, (1.0, 2.0, 3.0), strict=True))  # type: ignore[return-value]
