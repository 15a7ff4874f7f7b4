"""How attention to important and to unimportant tokens moves from query to query (Decay article, Fig. 5).

An important token may be ignored by one query and wanted again by the next. A score that remembers a little bridges
such dips; one that remembers everything also keeps what was important long ago.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from formerlab.cache import Full, Simulation
from formerlab.cache.simulation import Seen
from formerlab.evaluation.perplexity import Stream, window_batches
from formerlab.evaluation.scoring import evaluating
from formerlab.models.decoder import DecoderModel
from formerlab.rows import Cell

COLUMNS = ("group", "alpha", "query", "mean", "low", "high", "missed")
ALPHAS = (0.0, 0.2, 0.8, 1.0)
"""Scores that are followed: 0 is attention itself, 1 the plain sum."""
IMPORTANT = 0.1
"""Share of the tokens of the first half that count as important: those of most attention from the second half."""
KEPT = 0.4
"""Share of the tokens so far that a cache would keep by its score, for `missed`."""

Square = Float[Tensor, "batch heads time time"]
Scores = Float[Tensor, "sequences queries keys"]


class Followed(NamedTuple):
    """Scores of the tokens of the first half, as the queries of the second half leave them."""

    scores: dict[float, Scores]
    """By alpha, with the sum of the weights divided out: a mean of attention whose memory alpha sets."""
    missed: dict[float, Bool[Tensor, "sequences queries keys"]]
    """Whether a token's score is not among the best of all tokens so far."""
    importance: Float[Tensor, "sequences keys"]
    """Mean attention from the second half."""

    def packed(self) -> "Followed":
        """Return the same in single precision, off the GPU: all layers of all windows are kept until the end."""
        scores = {alpha: score.float().cpu() for alpha, score in self.scores.items()}
        return Followed(scores, {alpha: lost.cpu() for alpha, lost in self.missed.items()}, self.importance.cpu())


def follow(attention: Square) -> Followed:
    """Follow the scores S <- alpha S + p of all tokens of the first half through an unpruned pass.

    Sequences are those of the batch times the heads.
    """
    rows = attention.flatten(0, 1).double()
    time = rows.shape[-1]
    half = time // 2
    scores: dict[float, Tensor] = {}
    missed: dict[float, Tensor] = {}
    for alpha in ALPHAS:
        total, weight, kept, lost = torch.zeros_like(rows[:, 0]), torch.zeros(time, dtype=rows.dtype), [], []
        for query in range(time):
            total = alpha * total + rows[:, query]
            weight = alpha * weight + (torch.arange(time) <= query)
            if query >= half:
                seen = total[:, : query + 1]
                least = seen.kthvalue(query + 1 - max(1, round(KEPT * (query + 1))), dim=-1, keepdim=True).values
                lost.append(seen[:, :half] <= least)
                kept.append(total[:, :half] / weight[:half].to(total.device))
        scores[alpha], missed[alpha] = torch.stack(kept, 1), torch.stack(lost, 1)
    return Followed(scores, missed, rows[:, half:, :half].mean(1))


def dips(
    model: DecoderModel, stream: Stream, context: int, windows: Sequence[int], *, batch: int = 16
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells under COLUMNS: mean, 10 % and 90 % quantile of the scores of both groups at every query.

    Over all windows, layers and heads. Position 0, whose attention is that of a sink, belongs to neither group.
    """
    found: list[Followed] = []

    def observe(_: int, seen: Seen) -> None:
        found.append(follow(seen.probabilities).packed())

    for _, tokens in window_batches(stream, context, windows, batch):
        with evaluating(model):
            model(tokens[:, :-1].to(model.embedding.device), attend=Simulation(Full(), 1.0, observe=observe))
    if not found:
        return
    importance = torch.cat([each.importance for each in found])[:, 1:]
    count = max(1, round(IMPORTANT * importance.shape[1]))
    best = torch.zeros_like(importance, dtype=torch.bool).scatter_(1, importance.topk(count, dim=1).indices, value=True)
    for alpha in ALPHAS:
        scores = torch.cat([each.scores[alpha] for each in found])[..., 1:]
        missed = torch.cat([each.missed[alpha] for each in found])[..., 1:]
        for group, members in (("important", best), ("unimportant", ~best)):
            for step in range(scores.shape[1]):
                values = scores[:, step][members]
                low, high = torch.quantile(values[: 2**20], torch.tensor([0.1, 0.9], dtype=values.dtype)).tolist()
                share = missed[:, step][members].double().mean().item()
                yield group, alpha, scores.shape[1] + step, values.mean().item(), low, high, share
