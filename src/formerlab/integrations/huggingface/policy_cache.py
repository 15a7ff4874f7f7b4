"""What a policy keeps, as a cache of transformers."""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache

from formerlab.cache import Budget, CompressedCache, Full, KVCache, PrunedCache, resolve_budget
from formerlab.cache.policies.policy import Policy
from formerlab.cache.prefill import OneShot
from formerlab.errors import UserError
from formerlab.integrations.huggingface.attention import current_attend
from formerlab.integrations.huggingface.cache_argument import FIELD
from formerlab.integrations.huggingface.padding import count_padding
from formerlab.layers.attention import Heads, KeyHeads
from formerlab.layers.position import PositionEncoding


class _Rows(NamedTuple):
    """Rows of a batch with equally much padding, which share a cache."""

    rows: Int[Tensor, " some"]
    padding: int
    cache: PrunedCache | CompressedCache | KVCache


class PolicyCache(Cache):  # type: ignore[misc]
    """What a policy keeps, as a cache of transformers: models and `generate` carry it, and as an `attend` it fills.

    Models count padding and evicted tokens, so that tokens stand where they stand in the text.
    """

    def __init__(
        self, policy: Policy, budget: Budget, position: PositionEncoding | None, context: int | None = None
    ) -> None:
        super().__init__(layers=[])
        resolve_budget(budget, 1)  # refuse an impossible budget here
        self.policy, self.budget, self.position, self.context = policy, budget, position, context
        self._is_share = isinstance(budget, float) and budget < 1
        self._rows: list[_Rows] = []
        self._padding: list[int] = []
        self._columns: dict[int, int] = {}
        self._new()  # and here a policy that no cache can run

    def in_place_of(self, cache: Cache | None) -> "PolicyCache":
        """Become the caller's empty cache, if there is one: who holds that object goes on with it."""
        if cache is None:
            return self
        cache.__class__, cache.__dict__ = PolicyCache, self.__dict__
        return cast(PolicyCache, cache)

    def _new(self) -> PrunedCache | CompressedCache | KVCache:
        if isinstance(self.policy, Full):
            return KVCache()
        if isinstance(self.policy, OneShot):
            return CompressedCache(self.policy, self.budget, self.position)
        return PrunedCache(self.policy, self.budget, self.position)

    def expect(self, tokens: Tensor, mask: Any) -> None:
        """Prepare for new tokens of each row; raise UserError where they cannot be taken in as they are meant."""
        if isinstance(mask, dict):  # by kind of layer, as `generate` makes masks for a StaticCache
            mask = next((part for part in mask.values() if part is not None), None)
        batch, new = tokens.shape[:2]
        columns = self.get_seq_length() + new
        if mask is not None and (mask.ndim != 2 or mask.shape[1] != columns):
            raise UserError(
                f"attention_mask of shape {tuple(mask.shape)}: give a number for each of the {columns} tokens of a row"
                " (with padding, a DynamicCache and no StaticCache, for which generate makes other masks)"
            )
        known = self._padding or [0] * batch
        begun = columns > new
        padding = known if mask is None or (begun and new == 1) else _padding(mask)  # a step waits for no number
        if self.context is not None and columns - min(padding) > self.context:
            raise UserError(f"{columns - min(padding)} tokens exceed the context of {self.context} given to prune")
        if begun:
            self._check_more(new, padding)
        else:
            self._begin(padding, columns, tokens.device)

    def _begin(self, padding: list[int], columns: int, device: torch.device) -> None:
        if columns - max(padding) == 1 and self._is_share and not isinstance(self.policy, Full):
            raise UserError(
                f"budget {self.budget}: a prompt of one token has no share to keep; give a count of entries"
            )
        self._padding = padding
        for count in sorted(set(padding)):
            rows = torch.tensor([row for row, own in enumerate(padding) if own == count], device=device)
            self._rows.append(_Rows(rows, count, self._new()))

    def _check_more(self, new: int, padding: list[int]) -> None:
        if padding != self._padding:
            raise UserError("attention_mask: rows have other padding than when their cache began")
        pieces = new > 1 and not isinstance(self.policy, Full) and self.budget != 1.0
        if pieces and (self._is_share or isinstance(self.policy, OneShot)):
            raise UserError(
                f"{new} tokens after the first call: {self.policy!r} with budget={self.budget} prunes a prompt that is "
                "read at once; to feed it in pieces, give a policy that decides step by step a count of entries"
            )

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in the new keys and values of a layer, without padding; return what each query finds."""
        held = self._columns.get(layer, 0)
        self._columns[layer] = held + q.shape[2]
        if len(self._rows) == 1 and (held or not self._rows[0].padding):
            return self._rows[0].cache(layer, q, k, v)
        out = q.new_zeros(*q.shape[:3], v.shape[-1])
        for rows, padding, cache in self._rows:
            first = 0 if held else padding
            out[rows, :, first:] = cache(layer, *(x[rows, :, first:] for x in (q, k, v)))
        return out

    def update(self, keys: Tensor, values: Tensor, layer: int, *others: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """Return the new keys and values as they are: they are taken in where the layer attends."""
        del layer, others, more
        if current_attend() is not self:
            raise UserError(f"{FIELD}: this cache belongs to formerlab.prune; use it inside a block of prune")
        return keys, values

    def __len__(self) -> int:
        """Return the layers that have taken something in."""
        return len(self._columns)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens taken in, padding and evicted ones included."""
        return self._columns.get(layer_idx, 0)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the width of a mask and where it begins; nobody reads the mask."""
        return self.get_seq_length(layer_idx) + query_length, 0

    def reorder_cache(self, beam_idx: Int[Tensor, " batch"]) -> None:
        """Put row `beam_idx[i]` in the place of row i."""
        if len(self._rows) == 1:
            self._rows[0].cache.reorder(beam_idx)
            return
        for rows, _, cache in self._rows:
            place = {row: index for index, row in enumerate(rows.tolist())}
            chosen = beam_idx[rows].tolist()
            if not place.keys() >= set(chosen):
                raise UserError("rows with different padding cannot take each other's place")
            cache.reorder(torch.tensor([place[row] for row in chosen], device=beam_idx.device))

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        raise UserError(
            "what a pruned cache has evicted cannot come back: generate without an assistant model and without "
            "changing the batch"
        )

    crop = batch_repeat_interleave = batch_select_indices = _refuse
    is_croppable = property(_refuse)

    def reset(self) -> None:
        """Forget everything."""
        self._rows, self._padding, self._columns = [], [], {}

    def bytes(self) -> int:
        """Bytes of the keys and values held."""
        return sum(part.cache.bytes() for part in self._rows)


def _padding(mask: Tensor) -> list[int]:
    """Return the padding in front of each row. Raises UserError where there is padding anywhere else."""
    padding = count_padding(mask)
    if not mask[:, -1].all():
        raise UserError("attention_mask: padding behind tokens; pad batches on the left (padding_side='left')")
    return padding
