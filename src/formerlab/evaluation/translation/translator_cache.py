"""Keys and values of the target tokens so far, while a translator writes."""

import torch
from jaxtyping import Int
from torch import Tensor

from formerlab.layers.multihead import Heads
from formerlab.models.translator_model import TranslatorModel


class TranslatorCache:
    """Self-attention's keys and values of every decoder layer, for `rows` hypotheses of up to `length` tokens.

    The keys and values of the source are not here: the encoder gives them once, whatever the number of hypotheses.
    """

    def __init__(self, model: TranslatorModel, rows: int, length: int) -> None:
        spec, like = model.spec, model.embedding
        sizes = (spec.key_width, spec.value_width)
        self._stores = [[like.new_empty(rows, spec.heads, length, size) for size in sizes] for _ in range(spec.layers)]
        self.length = 0

    def extend(self, layer: int, k: Heads, v: Heads) -> tuple[Heads, Heads]:
        """Append the newest token of every hypothesis; return all tokens of this layer so far."""
        stores, end = self._stores[layer], self.length + k.shape[2]
        for store, new in zip(stores, (k, v), strict=True):
            store[:, :, self.length : end] = new
        return stores[0][:, :, :end], stores[1][:, :, :end]

    def advance(self) -> None:
        """Say that every layer has the newest token."""
        self.length += 1

    def select(self, rows: Int[Tensor, "kept"]) -> None:
        """Go on with the histories of these hypotheses, in this order."""
        same = rows.device.type == "cpu" and len(rows) == len(self._stores[0][0])  # a GPU would be waited for
        if same and torch.equal(rows, torch.arange(len(rows))):
            return
        for stores in self._stores:
            for index, store in enumerate(stores):
                kept = store.new_empty(len(rows), *store.shape[1:])
                kept[:, :, : self.length] = store[rows, :, : self.length]
                stores[index] = kept
