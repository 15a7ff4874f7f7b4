"""Beam search with the length penalty of GNMT, over a batch of sentences."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from formerlab.cache import KVCache
from formerlab.models.translator import TranslatorModel

LOOK = 8
"""Steps between two looks at which sentences are done, where a look means waiting for a GPU."""


class Hypothesis(NamedTuple):
    """A finished translation."""

    tokens: list[int]
    """Its tokens, without the end."""
    score: float
    """Log-probability, the end included, divided by the length penalty."""


@dataclass
class Best:
    """The best finished translation of every sentence so far."""

    tokens: Int[Tensor, "all time"]
    """Its tokens, filled up with ends."""
    scores: Float[Tensor, " all"]
    """Its log-probability over the length penalty, in double precision; -inf where none has finished."""
    finished: Int[Tensor, " all"]
    """Number of finished translations."""

    def take(
        self,
        live: Int[Tensor, " sentences"],
        histories: Int[Tensor, "sentences beam time"],
        top: Float[Tensor, "sentences beam"],
        origins: Int[Tensor, "sentences beam"],
        ends: Bool[Tensor, "sentences beam"],
        penalty: float,
    ) -> None:
        """Take the best continuations of the sentences `live`, those that end, as finished translations."""
        ends = ends & (top > -math.inf)
        self.finished[live] += ends.sum(dim=1)
        ranks = torch.arange(ends.shape[1], device=ends.device)
        first = ranks.where(ends, ends.shape[1] - 1).amin(dim=1, keepdim=True)  # the best, since `top` descends
        score = (top.gather(1, first)[:, 0].double() / penalty).where(ends.any(dim=1), -math.inf)
        better, time = score > self.scores[live], histories.shape[2]
        written = histories.gather(1, origins.gather(1, first)[:, :, None].expand(-1, -1, time))[:, 0]
        self.scores[live] = score.where(better, self.scores[live])
        self.tokens[live, :time] = written.where(better[:, None], self.tokens[live, :time])


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha, where the length counts the end (arXiv:1609.08144, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


@torch.no_grad()
def beam_search(
    model: TranslatorModel,
    source: Int[Tensor, "batch time"],
    real: Bool[Tensor, "batch time"],
    limits: list[int],
    end: int,
    *,
    beam: int = 4,
    alpha: float = 0.6,
) -> list[Hypothesis]:
    """Return the best translation found of each source, of at most `limits` tokens without the end.

    In every step the `beam` best hypotheses are continued by every token; of the `beam` best continuations those that
    end are finished, and the best `beam` others go on. A sentence is done when `beam` hypotheses have finished, or when
    none that goes on can beat the best finished one: its log-probability can only fall, and the penalty that divides it
    is at most that of the limit. So stopping early never changes the result, and beam = 1 is greedy decoding.

    Sentences that are done are decoded on, in vain, until the next look at which they are: LOOK steps on a GPU.
    """
    encoded, device, count, most = model.encode(source, real), source.device, len(source), max(limits)
    look = 1 if device.type == "cpu" else LOOK
    penalties = [length_penalty(limit + 1, alpha) for limit in limits]
    longest = torch.tensor(limits).to(device, non_blocking=True)
    bounds = torch.tensor(penalties, dtype=torch.float64).to(device, non_blocking=True)
    scores = torch.full((count, beam), -math.inf, device=device)
    best = Best(torch.full((count, most + 1), end, device=device), scores[:, 0].double(), torch.zeros_like(longest))
    scores[:, 0] = 0.0
    live, done = torch.arange(count, device=device), torch.zeros(count, dtype=torch.bool, device=device)
    histories = torch.empty(count * beam, 0, dtype=torch.long, device=device)
    newest = torch.full((count * beam, 1), end, device=device)
    cache, words = KVCache(most + 1), torch.arange(model.spec.vocabulary, device=device)
    for length in range(1, most + 2):  # tokens of a hypothesis that ends now, its end included
        logits = model.decode(newest, encoded, cache.length, cache.take)[:, -1]
        log_probs = torch.log_softmax(logits.float(), dim=-1).view(len(live), beam, -1)
        if length > min(limits):  # sentences at their limit can only end
            full = longest[live] < length
            log_probs = log_probs.masked_fill(full[:, None, None] & (words != end), -math.inf)
        totals = (scores[:, :, None] + log_probs).flatten(1)
        totals = nn.functional.pad(totals, (0, max(2 * beam - totals.shape[1], 0)), value=-math.inf)
        top, places = totals.topk(2 * beam, dim=1)  # impossible ones fill up where the vocabulary is small
        places = places.clamp(max=beam * len(words) - 1)
        origins, tokens = places // len(words), places % len(words)
        ends = tokens == end
        written, ending = histories.view(len(live), beam, -1), ends & ~done[:, None]
        penalty = length_penalty(length, alpha)
        best.take(live, written, top[:, :beam], origins[:, :beam], ending[:, :beam], penalty)
        scores, order = top.masked_fill(ends, -math.inf).topk(beam, dim=1)
        origins, tokens = origins.gather(1, order), tokens.gather(1, order)
        hopeful = scores[:, 0].double() / bounds[live] > best.scores[live]
        done = done | ~hopeful | (best.finished[live] >= beam)
        rows = torch.arange(len(live), device=device)
        if length % look == 0:
            rows = (~done).nonzero()[:, 0]
            if len(rows) == 0:
                break
            if len(rows) < len(live):
                encoded = encoded.select(rows)
            live, done, scores, origins, tokens = (x[rows] for x in (live, done, scores, origins, tokens))
        chosen = (rows[:, None] * beam + origins).flatten()
        same = device.type == "cpu" and torch.equal(chosen, torch.arange(len(histories)))  # a GPU would be waited for
        histories = torch.cat((histories[chosen], tokens.view(-1, 1)), dim=1)
        if not same:
            cache.reorder(chosen)
        newest = tokens.view(-1, 1)
    found = zip(best.tokens.tolist(), best.scores.tolist(), strict=True)
    return [Hypothesis(tokens[: tokens.index(end)], score) for tokens, score in found]
