"""Loss on a held-out token stream; every token except the first is predicted once."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor, nn

from formerlab.errors import UserError
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating, score

Stream = NDArray[np.integer[Any]]


class WindowLoss(NamedTuple):
    """Loss of one window."""

    window: int
    """Index of the window in the stream."""
    tokens: int
    """Number of predicted tokens, which is the context except in a partial last window."""
    loss_nats: float
    """Mean negative log-likelihood of these tokens."""
    realised_budget: float = 1.0
    """Measured cache size at the end of the window, as a fraction of all keys and values."""


def window_losses(
    model: nn.Module,
    stream: Stream,
    context: int,
    *,
    batch: int = 16,
    attend_for: AttendFor | None = None,
    windows: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[WindowLoss]:
    """Return the loss of each window of a stream of token ids.

    With context T, window w reads tokens w T, ..., (w + 1) T - 1 and predicts tokens w T + 1, ..., (w + 1) T. The last
    window may be shorter. `windows` has the indices of the evaluated windows in increasing order (default: all).
    Log-softmax is computed in float32 or wider, and means in float64.

    Raises UserError for a stream of fewer than 2 tokens.
    """
    windows = range(window_count(len(stream), context)) if windows is None else windows
    rows: list[WindowLoss] = []
    with evaluating(model):
        for indices, tokens in window_batches(stream, context, windows, batch):
            inputs = tokens.shape[1] - 1
            scores = score(model, tokens, torch.full((len(tokens),), inputs), attend_for)
            losses = -scores.log_probs.double().mean(dim=1)
            for window, loss, retained in zip(indices, losses.tolist(), scores.realised_budget.tolist(), strict=True):
                rows.append(WindowLoss(window, inputs, loss, retained))
            if progress is not None:
                progress.advance(len(indices))
    return rows


def window_count(tokens: int, context: int) -> int:
    """Return the number of windows of a stream of `tokens` tokens; raise UserError for fewer than 2 tokens."""
    if tokens < 2:
        raise UserError(f"a held-out stream of {tokens} tokens is too short for a prediction; use more text")
    return -(-(tokens - 1) // context)


def window_documents(stream: Stream, context: int, end_of_text: int) -> NDArray[np.int64]:
    """Return the document (index from 0) of the middle predicted token of each window.

    A document ends with its token `end_of_text`.
    """
    first = np.arange(window_count(len(stream), context)) * context + 1
    last = np.minimum(first + context, len(stream)) - 1
    documents: NDArray[np.int64] = np.flatnonzero(stream == end_of_text).searchsorted((first + last) // 2)
    return documents


def spread_windows(stream: Stream, context: int, count: int) -> list[int]:
    """Return the indices of at most `count` full windows, evenly spaced; window 0 if the stream has no full window."""
    full = max(1, (len(stream) - 1) // context)
    return sorted({int(window) for window in np.linspace(0, full - 1, min(count, full)).round()})


def mean_loss(rows: Sequence[WindowLoss]) -> float:
    """Return the mean loss in nats per token."""
    return sum(row.tokens * row.loss_nats for row in rows) / sum(row.tokens for row in rows)


def window_groups(stream: Stream, context: int, windows: Sequence[int], batch: int) -> list[list[int]]:
    """Return the windows in groups of `batch`; a partial window is in a separate group."""
    full = [window for window in windows if (window + 1) * context < len(stream)]
    batches = [full[first : first + batch] for first in range(0, len(full), batch)]
    return batches + [[window] for window in windows[len(full) :]]


def window_batches(
    stream: Stream, context: int, windows: Sequence[int], batch: int
) -> Iterator[tuple[Sequence[int], Int[Tensor, "batch time_plus_1"]]]:
    """Yield batches of window indices and tokens without padding; a partial window is in a separate batch."""
    for group in window_groups(stream, context, windows, batch):
        rows = [stream[window * context : (window + 1) * context + 1] for window in group]
        yield group, torch.from_numpy(np.stack(rows).astype(np.int64))
