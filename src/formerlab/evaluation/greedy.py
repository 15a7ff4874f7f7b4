"""Greedy decoding: always the most probable token."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from formerlab.evaluation.translator_cache import TranslatorCache
from formerlab.models.translator_model import TranslatorModel


@torch.no_grad()
def greedy(
    model: TranslatorModel,
    source: Int[Tensor, "batch time"],
    real: Bool[Tensor, "batch time"],
    limits: list[int],
    end: int,
) -> list[list[int]]:
    """Return for each source the target's tokens without its end, at most `limits` of them.

    A sentence that has ended is decoded no further; the call ends when all have.
    """
    encoded, rows = model.encode(source, real), torch.arange(len(source), device=source.device)
    cache = TranslatorCache(model, len(source), max(limits) + 1)
    said: list[list[int]] = [[] for _ in limits]
    newest = torch.full((len(source), 1), end, device=source.device)
    while len(rows):
        logits = model.decode(newest, encoded, cache.length, cache.extend)[:, -1]
        cache.advance()
        tokens, going = logits.argmax(dim=-1), []
        for place, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            if token != end and len(said[row]) < limits[row]:
                said[row].append(token)
                going.append(place)
        if len(going) < len(rows):
            kept = torch.tensor(going, device=source.device, dtype=torch.long)
            rows, tokens, encoded = rows[kept], tokens[kept], encoded.select(kept)
            cache.select(kept)
        newest = tokens[:, None]
    return said
