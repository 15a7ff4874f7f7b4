"""Beam search with the length penalty of GNMT, over a batch of sentences."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from formerlab.evaluation.translator_cache import TranslatorCache
from formerlab.models.translator_model import TranslatorModel


class Hypothesis(NamedTuple):
    """A finished translation."""

    tokens: list[int]
    """Its tokens, without the end."""
    score: float
    """Log-probability, the end included, divided by the length penalty."""


@dataclass
class Best:
    """The best finished translation of a sentence so far."""

    hypothesis: Hypothesis = field(default_factory=lambda: Hypothesis([], -math.inf))
    finished: int = 0


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
    """
    encoded = model.encode(source, real)
    device, count = source.device, len(source)
    live = list(range(count))
    best = [Best() for _ in live]
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0
    histories = torch.empty(count * beam, 0, dtype=torch.long, device=device)
    newest = torch.full((count * beam, 1), end, device=device)
    cache = TranslatorCache(model, count * beam, max(limits) + 1)
    while live:
        logits = model.decode(newest, encoded, cache.length, cache.extend)[:, -1]
        cache.advance()
        log_probs = torch.log_softmax(logits.float(), dim=-1).view(len(live), beam, -1)
        length = cache.length  # tokens of a hypothesis that ends now, its end included
        _force_end(log_probs, [limits[sentence] < length for sentence in live], end)
        totals = (scores[:, :, None] + log_probs).flatten(1)
        top, places = totals.topk(min(2 * beam, totals.shape[1]), dim=1)
        top, places = _padded(top, places, 2 * beam)
        origins, tokens = places // log_probs.shape[2], places % log_probs.shape[2]
        ends = tokens == end
        _finish(best, live, histories.view(len(live), beam, -1), top[:, :beam], origins, ends[:, :beam], alpha, length)
        going = top.masked_fill(ends, -math.inf)
        scores, order = going.topk(beam, dim=1)
        origins, tokens = origins.gather(1, order), tokens.gather(1, order)
        bounds = (scores[:, 0].double().tolist(), [length_penalty(limits[s] + 1, alpha) for s in live])
        kept = [
            place
            for place, (sentence, score, penalty) in enumerate(zip(live, *bounds, strict=True))
            if best[sentence].finished < beam and score / penalty > best[sentence].hypothesis.score
        ]
        rows = torch.tensor(kept, device=device, dtype=torch.long)
        scores, origins, tokens = scores[rows], origins[rows], tokens[rows]
        chosen = (rows[:, None] * beam + origins).flatten()
        histories = torch.cat((histories[chosen], tokens.view(-1, 1)), dim=1)
        cache.select(chosen)
        if len(kept) < len(live):
            encoded, live = encoded.select(rows), [live[place] for place in kept]
        newest = tokens.view(-1, 1)
    return [one.hypothesis for one in best]


def _force_end(log_probs: Tensor, full: list[bool], end: int) -> None:
    """Leave nothing but the end to sentences that are as long as they may be."""
    rows = torch.tensor(full, device=log_probs.device)
    if rows.any():
        ends = log_probs[rows][:, :, end].clone()
        log_probs[rows] = -math.inf
        log_probs[rows, :, end] = ends


def _padded(top: Tensor, places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Fill up with impossible continuations where the vocabulary is smaller than the beam."""
    lacking = width - top.shape[1]
    if lacking <= 0:
        return top, places
    return torch.nn.functional.pad(top, (0, lacking), value=-math.inf), torch.nn.functional.pad(places, (0, lacking))


def _finish(
    best: list[Best],
    live: list[int],
    histories: Int[Tensor, "sentences beam time"],
    top: Tensor,
    origins: Tensor,
    ends: Tensor,
    alpha: float,
    length: int,
) -> None:
    """Take the continuations that end among the best as finished translations."""
    penalty = length_penalty(length, alpha)
    for place, rank in (ends & (top > -math.inf)).nonzero().tolist():
        one, score = best[live[place]], top[place, rank].double().item() / penalty
        one.finished += 1
        if score > one.hypothesis.score:
            one.hypothesis = Hypothesis(histories[place, origins[place, rank]].tolist(), score)
