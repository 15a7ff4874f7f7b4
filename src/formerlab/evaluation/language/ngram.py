"""n-gram models with interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998, TR-10-98, section 3).

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h) + gamma(h) p(w | h without its first token)

The discounts D of the counts 1, 2 and 3 or more are estimated from the counts of counts, and gamma(h) is the discounted
mass divided by c(h). Below the highest order, c is the number of different preceding tokens. The recursion ends at the
uniform distribution. NLTK has only one discount, and KenLM must be compiled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

FALLBACK = (0.5, 1.0, 1.5)
"""KenLM's fallback discounts, for short texts without n-grams that occur once, twice or three times."""

Ids = NDArray[np.int64]


class Order(NamedTuple):
    """The n-grams of one length, sorted by their keys."""

    keys: Ids
    """history * vocabulary + last token, where history is the index of the preceding tokens in the next lower order."""
    discounted: Float[np.ndarray, " grams"]
    """Count minus discount, divided by the count of the history."""
    gamma: Float[np.ndarray, " histories"]
    """gamma of each history; 1 if no token follows it."""


class NGram:
    """An n-gram model of order n, fitted to one token stream."""

    def __init__(self, stream: NDArray[np.unsignedinteger], order: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        tokens, grams = np.asarray(stream, dtype=np.int64), list[tuple[Ids, Ids]]()
        histories = np.zeros_like(tokens)  # index of the (length - 1)-gram that starts at each token
        for length in range(1, order + 1):
            keys = histories[: len(tokens) - length + 1] * vocabulary + tokens[length - 1 :]
            unique, first, indices, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            if grams:  # below the highest order, count the different n-grams that end in each shorter n-gram
                shorter, _ = grams[-1]
                grams[-1] = shorter, np.bincount(histories[first + 1], minlength=len(shorter))
            grams.append((unique, counts))
            histories = indices
        history_counts = [1, *(len(keys) for keys, _ in grams)]
        orders = zip(grams, history_counts, strict=False)
        self.orders = [_order(keys, counts, vocabulary, count) for (keys, counts), count in orders]

    def log_probabilities(self, windows: Int[np.ndarray, "windows time_plus_1"]) -> Float[np.ndarray, "windows time"]:
        """Return ln p of each token given the preceding tokens of its window, except for the first token."""
        tokens = windows.astype(np.int64)
        probabilities = np.full(tokens[:, 1:].shape, 1.0 / self.vocabulary)
        histories: Ids = np.zeros_like(tokens)  # index of the history before each token, or -1 if it is unseen
        for length, order in enumerate(self.orders, start=1):
            indices = np.where(histories >= 0, histories, 0)
            keys = indices * self.vocabulary + tokens
            grams = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            is_seen = (order.keys[grams] == keys) & (histories >= 0)
            discounted = np.where(is_seen, order.discounted[grams], 0.0)[:, 1:]
            mixed = discounted + order.gamma[indices[:, 1:]] * probabilities
            probabilities = np.where(histories[:, 1:] >= 0, mixed, probabilities)
            grams = np.where(is_seen, grams, -1)
            histories = np.full_like(tokens, -1)
            histories[:, 1:] = grams[:, :-1]
            # the first `length` tokens of a window have too few preceding tokens for a history of this length
            histories[:, :length] = -1
        return np.asarray(np.log(probabilities))


def _order(keys: Ids, counts: Ids, vocabulary: int, histories: int) -> Order:
    history = keys // vocabulary
    discount = np.array([0.0, *discounts(counts)])[np.minimum(counts, 3)]
    total = np.bincount(history, counts, histories)
    gamma = np.divide(np.bincount(history, discount, histories), total, out=np.ones(histories), where=total > 0)
    return Order(keys, (counts - discount) / np.maximum(total, 1)[history], gamma)


def discounts(counts: Sequence[int] | Ids) -> tuple[float, float, float]:
    """Return D1, D2 and D3+ for these counts of n-grams (equation 26 of Chen & Goodman)."""
    ones, twos, threes, fours = (int(np.sum(np.asarray(counts) == count)) for count in (1, 2, 3, 4))
    if not (ones and twos and threes):
        return FALLBACK
    y = ones / (ones + 2 * twos)
    estimates = (1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes)
    return tuple(min(max(value, 0.0), count) for value, count in zip(estimates, (1.0, 2.0, 3.0), strict=True))  # type: ignore[return-value]
