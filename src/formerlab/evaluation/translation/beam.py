"""Beam search over a batch of sentences, with the length penalty of GNMT."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from formerlab.cache import KVCache
from formerlab.models.translator import TranslatorModel

CHECK_EVERY = 8
"""Number of steps between removals of finished sentences on a GPU; each removal synchronises with the device."""


class Hypothesis(NamedTuple):
    """A finished translation."""

    tokens: list[int]
    """Token ids, without the end token."""
    score: float
    """Log-probability, including the end token, divided by the length penalty."""


@dataclass
class BestTranslations:
    """The best finished translation of each sentence so far."""

    tokens: Int[Tensor, "batch time"]
    """Token ids, padded with end tokens."""
    scores: Float[Tensor, " batch"]
    """Log-probability divided by the length penalty, in float64; -inf for a sentence without a finished translation."""
    finished: Int[Tensor, " batch"]
    """Number of finished translations per sentence."""

    def update(
        self,
        live: Int[Tensor, " sentences"],
        histories: Int[Tensor, "sentences beam time"],
        log_probs: Float[Tensor, "sentences beam"],
        origins: Int[Tensor, "sentences beam"],
        is_end: Bool[Tensor, "sentences beam"],
        penalty: float,
    ) -> None:
        """Store the best finished continuation of each sentence in `live` if its score exceeds the stored score.

        Continuation i of a sentence extends history `origins[i]`. `log_probs` are in descending order, `is_end` marks
        the finished continuations, and `penalty` is their length penalty.
        """
        is_end = is_end & (log_probs > -math.inf)
        self.finished[live] += is_end.sum(dim=1)
        ranks = torch.arange(is_end.shape[1], device=is_end.device)
        first = ranks.where(is_end, is_end.shape[1] - 1).amin(dim=1, keepdim=True)
        score = (log_probs.gather(1, first)[:, 0].double() / penalty).where(is_end.any(dim=1), -math.inf)
        better, time = score > self.scores[live], histories.shape[2]
        tokens = histories.gather(1, origins.gather(1, first)[:, :, None].expand(-1, -1, time))[:, 0]
        self.scores[live] = score.where(better, self.scores[live])
        self.tokens[live, :time] = tokens.where(better[:, None], self.tokens[live, :time])


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^alpha, where length includes the end token (arXiv:1609.08144, equation 14)."""
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
    """Return the best translation that beam search finds for each source sentence.

    Translation i has at most `limits[i]` tokens plus the end token, whose id is `end`. `real` is False for padding.
    Each step extends the `beam` best hypotheses by every token. A continuation that ends with the end token is a
    finished translation if it is among the `beam` best. The next step extends the `beam` best continuations without the
    end token. A sentence is done when `beam` hypotheses have finished, or when no unfinished hypothesis can exceed the
    best finished score: log-probabilities only decrease, and the length penalty is largest at the limit. With beam = 1,
    the search is greedy decoding.
    """
    encoded, device, count, longest_limit = model.encode(source, real), source.device, len(source), max(limits)
    check_every = 1 if device.type == "cpu" else CHECK_EVERY
    penalties = [length_penalty(limit + 1, alpha) for limit in limits]
    longest = torch.tensor(limits).to(device, non_blocking=True)
    bounds = torch.tensor(penalties, dtype=torch.float64).to(device, non_blocking=True)
    scores = torch.full((count, beam), -math.inf, device=device)
    tokens = torch.full((count, longest_limit + 1), end, device=device)
    best = BestTranslations(tokens, scores[:, 0].double(), torch.zeros_like(longest))
    scores[:, 0] = 0.0
    live, done = torch.arange(count, device=device), torch.zeros(count, dtype=torch.bool, device=device)
    histories = torch.empty(count * beam, 0, dtype=torch.long, device=device)
    newest = torch.full((count * beam, 1), end, device=device)
    cache, token_ids = KVCache(longest_limit + 1), torch.arange(model.spec.vocabulary, device=device)
    for length in range(1, longest_limit + 2):  # length of hypotheses that end in this step, including the end token
        logits = model.decode(newest, encoded, cache.length, cache.append)[:, -1]
        log_probs = torch.log_softmax(logits.float(), dim=-1).view(len(live), beam, -1)
        if length > min(limits):  # hypotheses at the limit can only end
            full = longest[live] < length
            log_probs = log_probs.masked_fill(full[:, None, None] & (token_ids != end), -math.inf)
        totals = (scores[:, :, None] + log_probs).flatten(1)
        totals = nn.functional.pad(totals, (0, max(2 * beam - totals.shape[1], 0)), value=-math.inf)
        top, indices = totals.topk(2 * beam, dim=1)  # includes padding of -inf if the vocabulary is small
        indices = indices.clamp(max=beam * len(token_ids) - 1)
        origins, tokens = indices // len(token_ids), indices % len(token_ids)
        ends = tokens == end
        by_sentence, ending = histories.view(len(live), beam, -1), ends & ~done[:, None]
        penalty = length_penalty(length, alpha)
        best.update(live, by_sentence, top[:, :beam], origins[:, :beam], ending[:, :beam], penalty)
        scores, order = top.masked_fill(ends, -math.inf).topk(beam, dim=1)
        origins, tokens = origins.gather(1, order), tokens.gather(1, order)
        can_improve = scores[:, 0].double() / bounds[live] > best.scores[live]
        done = done | ~can_improve | (best.finished[live] >= beam)
        rows = torch.arange(len(live), device=device)
        if length % check_every == 0:
            rows = (~done).nonzero()[:, 0]
            if len(rows) == 0:
                break
            if len(rows) < len(live):
                encoded = encoded.select(rows)
            live, done, scores, origins, tokens = (x[rows] for x in (live, done, scores, origins, tokens))
        parents = (rows[:, None] * beam + origins).flatten()
        in_order = device.type == "cpu" and torch.equal(parents, torch.arange(len(histories)))  # synchronises a GPU
        histories = torch.cat((histories[parents], tokens.view(-1, 1)), dim=1)
        if not in_order:
            cache.reorder(parents)
        newest = tokens.view(-1, 1)
    translations = zip(best.tokens.tolist(), best.scores.tolist(), strict=True)
    return [Hypothesis(tokens[: tokens.index(end)], score) for tokens, score in translations]
