"""Any causal model of transformers with a pruned cache, inside a `with` block."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from formerlab.cache import CompressedCache, Full, KVCache, PrunedCache
from formerlab.cache.budget import AnyBudget
from formerlab.cache.policies.policy import OneShot, Policy, check_configuration
from formerlab.errors import UserError
from formerlab.integrations.huggingface.causal_lm import CausalLM, attending, current_attend
from formerlab.integrations.huggingface.modeling import (
    FIELD,
    NAMES,
    FormerlabForCausalLM,
    check_positions,
    count_padding,
    take_cache,
)
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.tasks.scoring import evaluating


class PolicyCache(Cache):  # type: ignore[misc]
    """A pruned cache as one of transformers: models and `generate` carry it, and as an `attend` it takes in tokens.

    Models count padding and evicted tokens, so that tokens have their positions in the text.
    """

    def __init__(
        self, policy: Policy, budget: AnyBudget, position: PositionEncoding | None, context: int | None = None
    ) -> None:
        super().__init__(layers=[])
        budget = check_configuration(policy, budget, stepwise=False)  # refuse an impossible budget here
        self.policy, self.budget, self.position, self.context = policy, budget, position, context
        self._rows: list[tuple[Int[Tensor, " some"], int, PrunedCache | CompressedCache | KVCache]] = []
        """Rows with equally much padding, that number, and the cache that they share."""
        self._padding: list[int] = []
        self._columns: dict[int, int] = {}
        self._new()  # and here a policy that no cache can run

    def in_place_of(self, cache: Cache | None) -> "PolicyCache":
        """Replace the caller's empty cache, if there is one, so that this object goes on as ours."""
        if cache is None:
            return self
        cache.__class__, cache.__dict__ = PolicyCache, self.__dict__
        return cast(PolicyCache, cache)

    def _new(self) -> PrunedCache | CompressedCache | KVCache:
        if isinstance(self.policy, Full):
            return KVCache()
        kind = CompressedCache if isinstance(self.policy, OneShot) else PrunedCache
        return kind(self.policy, self.budget, self.position)

    def expect(self, tokens: Tensor, mask: Any, position_ids: Tensor | None = None) -> None:
        """Prepare for new tokens of each row; raise UserError where they do not go on from those before."""
        begun, new = self.get_seq_length() > 0, tokens.shape[1]
        columns = self.get_seq_length() + new
        if isinstance(mask, dict):  # by kind of layer, as `generate` makes masks for a StaticCache
            mask = next((part for part in mask.values() if part is not None), None)
        padding = self._padding or [0] * len(tokens)
        if mask is not None:
            padding = _padding(mask, columns, padding if begun and new == 1 else None)
        if self.context is not None and columns - min(padding) > self.context:
            raise UserError(f"{columns - min(padding)} tokens exceed the context of {self.context} given to prune")
        _refuse_packed(position_ids, new, [count - columns + new for count in padding])
        whole = isinstance(self.policy, Full) or self.budget == 1.0
        share = isinstance(self.budget, float) and not whole
        if begun and padding != self._padding:
            raise UserError("attention_mask: rows have other padding than when their cache began")
        if begun and new > 1 and not whole and (share or isinstance(self.policy, OneShot)):
            raise UserError(
                f"{new} tokens after the first call: {self.policy!r} with budget={self.budget} prunes a prompt that is "
                "read at once; to feed it in pieces, give a policy that decides step by step a count of entries"
            )
        if not begun:
            if share and columns - max(padding) == 1:
                raise UserError(f"budget {self.budget}: a prompt of one token has no share; give a count of entries")
            self._begin(padding, tokens.device)

    def _begin(self, padding: list[int], device: torch.device) -> None:
        self._padding = padding
        for count in sorted(set(padding)):
            rows = torch.tensor([row for row, own in enumerate(padding) if own == count], device=device)
            self._rows.append((rows, count, self._new()))

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in the new keys and values of a layer, without padding; return the attention output of each query."""
        held = self._columns.get(layer, 0)
        self._columns[layer] = held + q.shape[2]
        if len(self._rows) == 1 and (held or not self._padding[0]):
            return self._rows[0][2](layer, q, k, v)
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
        """Return the width of a mask and its beginning, for transformers; the mask itself is not used."""
        return self.get_seq_length(layer_idx) + query_length, 0

    def reorder_cache(self, beam_idx: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `beam_idx[i]`."""
        if len(self._rows) == 1:
            self._rows[0][2].reorder(beam_idx)
            return
        for rows, _, cache in self._rows:
            place = {row: index for index, row in enumerate(rows.tolist())}
            chosen = beam_idx[rows].tolist()
            if not place.keys() >= set(chosen):
                raise UserError("rows with different padding cannot replace each other")
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
        return sum(cache.bytes() for _, _, cache in self._rows)


def _refuse_packed(position_ids: Tensor | None, new: int, padding: list[int]) -> None:
    """Raise UserError where the new tokens of a row, behind its padding, belong to several texts.

    Positions of several axes (images) are not checked, except the first of four, which counts text.
    """
    if position_ids is not None and position_ids.ndim == 3 and len(position_ids) == 4:
        position_ids = position_ids[0]
    if position_ids is not None and position_ids.ndim == 2 and new > 1:
        columns = torch.arange(new, device=position_ids.device)
        check_positions(position_ids, columns >= torch.tensor(padding, device=position_ids.device)[:, None])


def _padding(mask: Tensor, columns: int, known: list[int] | None) -> list[int]:
    """Return the padding in front of each row: what is `known`, or as counted, for which a GPU is waited."""
    if mask.ndim != 2 or mask.shape[1] != columns:
        raise UserError(
            f"attention_mask of shape {tuple(mask.shape)}: give a number for each of the {columns} tokens of a row "
            "(with padding, a DynamicCache and no StaticCache, for which generate makes other masks)"
        )
    if known is not None:
        return known
    padding = count_padding(mask)
    if not mask[:, -1].all():
        raise UserError("attention_mask: padding behind tokens; pad batches on the left (padding_side='left')")
    return padding


REMEDIES = {
    "DecoderModel": "to a decoder of ours give attend=PrunedCache(...)",
    "PeftModel": "give prune model.get_base_model(), which has the adapters",
    "OptimizedModule": "prune the model itself, before torch.compile (model._orig_mod)",
    "Pipeline": "give prune the pipeline's own model, pipe.model",
    **dict.fromkeys(
        ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "AveragedModel"),
        "give prune the model inside, model.module",
    ),
}
"""How to prune what wraps a model, by the name of its class."""


@contextmanager
def prune(model: Any, policy: Policy, budget: AnyBudget, *, context: int | None = None) -> Iterator[None]:
    """Let a causal model of transformers hold only a part of its keys and values, until the block ends.

    `model.generate` and `model(...)` work as ever, greedily, with samples and with beams, for batches padded on the
    left. A policy that decides step by step prunes the prompt while it is read and goes on while text is generated
    (`PrunedCache`); one that chooses once (SnapKV, ExpectedAttention) compresses the prompt and keeps all that follows
    (`CompressedCache`). `budget` is a count of entries for each key head (int), or a share of each row's own prompt,
    padding not counted (float); the count that a share gives stays the same while text is generated. `use_cache=False`
    makes every call a prompt of its own. `context` is the longest text in tokens, for models whose layers see a window
    of that size. There are no gradients in the block, and no dropout; afterwards the model is what it was.

    Raises UserError in one line for a model that cannot be pruned (it is tried out when the block begins, see
    `CausalLM`), a policy that cannot run in a cache, an impossible budget, and calls that would come out wrong.
    """
    if not isinstance(model, PreTrainedModel) or not model.can_generate() or model.config.is_encoder_decoder:
        remedies = [REMEDIES[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in REMEDIES]
        remedy = f"; {remedies[0]}" if remedies else ""
        raise UserError(f"prune takes a causal model of transformers, not a {type(model).__name__}{remedy}")
    if hasattr(model.forward, "is_pruned"):
        raise UserError(f"this {type(model).__name__} is pruned already; leave that block first")
    inner = (getattr(model.config, key) for key in model.config.sub_configs)
    found = [config for config in (model.config, *inner) if config is not None]
    configs = [(config, config._attn_implementation_internal) for config in found]
    forward = model.__dict__.get("forward")
    with evaluating(model, nullcontext):
        try:
            if isinstance(model, FormerlabForCausalLM):
                position = model.decoder.position
            else:
                position = CausalLM(model, context).position
            new = functools.partial(PolicyCache, policy, budget, position, context)
            model.forward = _pruned(model, new)
            yield
        finally:
            model.__dict__.pop("forward", None)
            if forward is not None:
                model.forward = forward
            for config, implementation in configs:  # `set_attn_implementation` refuses some, such as MPT's None
                config._attn_implementation_internal = implementation


def _pruned(model: Any, new: Callable[[], PolicyCache]) -> Callable[..., Any]:
    """Return a model's forward pass with our cache in place of an empty or missing one."""
    forward, ours = model.forward, new()  # refuses a policy or a budget
    signature = inspect.signature(forward)
    name = next((name for name in NAMES if name in signature.parameters), None)
    if name is None:
        raise UserError(f"{type(model).__name__}: its forward pass takes no cache of keys and values")
    more = next((part.name for part in signature.parameters.values() if part.kind is part.VAR_KEYWORD), "")

    @functools.wraps(forward)
    def pruned(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given |= given.pop(more, {})
        if given.get("output_attentions", getattr(model.config, "output_attentions", False)):
            raise UserError("output_attentions: a pruned cache returns no attention; ask for it outside the block")
        cache, mine = take_cache(given), given.get("use_cache") is not False
        _refuse_other(cache, ours)
        if not isinstance(cache, PolicyCache):
            mine, cache = mine or cache is not None, new().in_place_of(cache)
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is not None:
            cache.expect(tokens, given.get("attention_mask"), given.get("position_ids"))
        if mine:
            given[name] = cache
        with torch.no_grad(), attending(cache):
            return forward(**given)

    pruned.is_pruned = True  # type: ignore[attr-defined]
    return pruned


def _refuse_other(cache: Any, ours: PolicyCache) -> None:
    """Refuse a cache that was begun without pruning, or under another policy or budget."""
    if isinstance(cache, PolicyCache):
        if (cache.policy, cache.budget) != (ours.policy, ours.budget):
            begun = f"{cache.policy!r} and budget {cache.budget}"
            raise UserError(f"{FIELD}: this cache was begun with {begun}; begin with an empty one")
    elif cache is not None and cache.get_seq_length() > 0:
        raise UserError(f"{FIELD}: this cache was begun without pruning; begin with an empty one")
