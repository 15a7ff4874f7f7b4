"""The attention probabilities of a translator on one sentence pair."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from formerlab.layers.multihead import MultiHead
from formerlab.models.translator_model import TranslatorModel
from formerlab.tasks.sentence_batch import SentenceBatch

COLUMNS = ("sentence", "part", "layer", "head", "query", "key", "query_token", "key_token", "weight")
"""Columns of attention.csv; part is encoder, decoder or cross."""

Map = tuple[str, int, Tensor]
"""Part, layer, and weights of shape (heads, queries, keys)."""


@torch.no_grad()
def attention_maps(model: TranslatorModel, batch: SentenceBatch) -> list[Map]:
    """Return the attention probabilities of every layer on a batch of one pair, without dropout."""
    found: list[Map] = []
    places: dict[nn.Module, tuple[str, int]] = {}
    for layer, (reading, writing) in enumerate(zip(model.encoder, model.decoder, strict=True)):
        places[reading.get_submodule("attention")] = ("encoder", layer)
        places[writing.get_submodule("attention")] = ("decoder", layer)
        places[writing.get_submodule("cross")] = ("cross", layer)

    def look(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(module, MultiHead)
        q, (k, _), *rest = arguments
        mask = rest[0] if rest else None
        if options.get("causal"):
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        found.append((*places[module], module.weights(q, k, mask)[0].cpu()))

    hooks = [module.register_forward_pre_hook(look, with_kwargs=True) for module in places]
    was_training = model.training
    try:
        model.eval()(batch.source, batch.real, batch.target_in)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return found


def attention_rows(sentence: int, maps: list[Map], source: list[str], target: list[str]) -> Iterator[list[Any]]:
    """Yield one row per weight; `source` are the tokens the encoder reads, `target` those the decoder reads."""
    for part, layer, weights in maps:
        queries, keys = (source, source) if part == "encoder" else (target, source if part == "cross" else target)
        for head, rows in enumerate(weights.tolist()):
            for q, row in enumerate(rows):
                for k, weight in enumerate(row):
                    if part != "decoder" or k <= q:
                        yield [sentence, part, layer, head, q, k, queries[q], keys[k], weight]
