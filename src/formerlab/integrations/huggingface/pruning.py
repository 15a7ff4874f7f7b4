"""`prune`, a context manager that gives causal language models of transformers a pruned KV cache."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, StaticCache

from formerlab.cache import CompressedCache, Full, KVCache, Local, PrunedCache, Pyramid, resolve_budget
from formerlab.cache.budget import AnyBudget
from formerlab.cache.eviction import Eviction
from formerlab.cache.policies.policy import OneShot, Policy, check_configuration
from formerlab.errors import UserError
from formerlab.integrations.huggingface.causal_lm import CausalLM, attending, current_attend
from formerlab.integrations.huggingface.modeling import (
    CACHE_FIELD,
    CACHE_NAMES,
    FormerlabForCausalLM,
    check_mask,
    check_positions,
    count_padding,
    take_cache,
)
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.tasks.scoring import evaluating

SINK = 4
"""Number of first tokens that are retained to test whether a model has an attention sink."""
SINK_TOKENS = 64
"""Number of tokens on which the test compares losses."""
_tested_policies: WeakKeyDictionary[Any, set[Policy]] = WeakKeyDictionary()
"""The policies that were tested for an evicted attention sink, by model."""


class PolicyCache(Cache):  # type: ignore[misc]
    """A pruned cache that is a transformers cache and an attention function (`Attend`).

    Its length includes padding and evicted tokens, so tokens keep their positions in the text.
    """

    def __init__(
        self, policy: Policy, budget: AnyBudget, position: PositionEncoding | None, context: int | None = None
    ) -> None:
        super().__init__(layers=[])
        budget = check_configuration(policy, budget, stepwise=False)  # raises UserError for an invalid budget
        self.policy, self.budget, self.position, self.context = policy, budget, position, context
        self._row_groups: list[tuple[Int[Tensor, " rows"], int, PrunedCache | CompressedCache | KVCache]] = []
        """Groups of rows with equal padding: (row indices, padding tokens per row, cache of the group)."""
        self._padding: list[int] = []
        self._lengths: dict[int, int] = {}
        self._new_cache()  # raises UserError for a policy that cannot run in a cache

    def convert(self, cache: Cache | None) -> "PolicyCache":
        """Turn the caller's empty cache into this cache, so that the caller's variable refers to the pruned cache.

        Returns the converted cache, or this cache if `cache` is None.
        """
        if cache is None:
            return self
        cache.__class__, cache.__dict__ = PolicyCache, self.__dict__
        return cast(PolicyCache, cache)

    def _new_cache(self) -> PrunedCache | CompressedCache | KVCache:
        if isinstance(self.policy, Full):
            return KVCache()
        kind = CompressedCache if isinstance(self.policy.scorer, OneShot) else PrunedCache
        return kind(self.policy, self.budget, self.position)

    def prepare(self, tokens: Tensor, mask: Any, position_ids: Tensor | None = None) -> None:
        """Check the next tokens (batch, time) or embeddings (batch, time, width).

        The first call groups the rows by padding. Raises UserError if the cache cannot continue with these tokens.
        """
        is_filled, new_tokens = self.get_seq_length() > 0, tokens.shape[1]
        columns = self.get_seq_length() + new_tokens
        padding = self._padding or [0] * len(tokens)
        if mask is not None:
            padding = _checked_padding(mask, columns, padding if is_filled and new_tokens == 1 else None)
        if self.context is not None and columns - min(padding) > self.context:
            raise UserError(f"{columns - min(padding)} tokens exceed the context of {self.context} given to prune")
        _check_not_packed(position_ids, new_tokens, [count - columns + new_tokens for count in padding])
        unpruned = isinstance(self.policy, Full) or self.budget == 1.0
        is_fraction = isinstance(self.budget, float) and not unpruned
        if is_filled and padding != self._padding:
            raise UserError("attention_mask: padding differs from the first call of this cache")
        if is_filled and new_tokens > 1 and not unpruned and (is_fraction or isinstance(self.policy.scorer, OneShot)):
            raise UserError(
                f"{new_tokens} tokens after the first call: {self.policy!r} with budget={self.budget} needs the whole "
                "prompt in one call; for chunked prefill, use a stepwise policy and a budget in keys"
            )
        if not is_filled:
            if is_fraction and columns - max(padding) == 1:
                problem = "a fraction needs a prompt of at least two tokens; give a count of keys"
                raise UserError(f"budget {self.budget}: {problem}")
            self._group_rows(padding, tokens.device)

    def _group_rows(self, padding: list[int], device: torch.device) -> None:
        """Group the rows by padding and give each group an empty cache."""
        self._padding = padding
        for count in sorted(set(padding)):
            rows = torch.tensor([row for row, width in enumerate(padding) if width == count], device=device)
            self._row_groups.append((rows, count, self._new_cache()))

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Store the new keys and values of a layer without padding; return the attention output of each query.

        q is (batch, heads, time, d_head); k and v are (batch, key-value heads, time, channels).
        """
        length = self._lengths.get(layer, 0)
        self._lengths[layer] = length + q.shape[2]
        if len(self._row_groups) == 1 and (length or not self._padding[0]):
            return self._row_groups[0][2](layer, q, k, v)
        out = q.new_zeros(*q.shape[:3], v.shape[-1])
        for rows, padding, cache in self._row_groups:
            first = 0 if length else padding
            out[rows, :, first:] = cache(layer, *(x[rows, :, first:] for x in (q, k, v)))
        return out

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the new keys and values, which the attention call stores. Raises UserError outside `prune`."""
        if current_attend() is not self:
            raise UserError(f"{CACHE_FIELD}: this cache belongs to formerlab.prune; use it inside the prune block")
        return keys, values

    def __len__(self) -> int:
        """Return the number of layers with tokens in the cache."""
        return len(self._lengths)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens so far, including padding and evicted tokens."""
        return self._lengths.get(layer_idx, 0)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the width and the offset of the mask that transformers creates; the cache does not use the mask."""
        return self.get_seq_length(layer_idx) + query_length, 0

    def reorder_cache(self, beam_idx: Int[Tensor, " batch"]) -> None:
        """Replace row i by row `beam_idx[i]`; raise UserError if their padding differs."""
        if len(self._row_groups) == 1:
            self._row_groups[0][2].reorder(beam_idx)
            return
        for rows, _, cache in self._row_groups:
            index_of = {row: index for index, row in enumerate(rows.tolist())}
            chosen = beam_idx[rows].tolist()
            if not index_of.keys() >= set(chosen):
                raise UserError("beam_idx: rows with different padding cannot replace each other")
            cache.reorder(torch.tensor([index_of[row] for row in chosen], device=beam_idx.device))

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        """Raise UserError for operations that a pruned cache does not support.

        These are cropping, which needs evicted tokens, and repeating or selecting rows of the batch.
        """
        raise UserError(
            "a pruned cache cannot be cropped, because evicted tokens are lost, and its rows cannot be repeated or "
            "selected; do not use assisted generation (an assistant model or prompt lookup)"
        )

    crop = batch_repeat_interleave = batch_select_indices = _refuse
    is_croppable = property(_refuse)

    def reset(self) -> None:
        """Empty the cache."""
        self._row_groups, self._padding, self._lengths = [], [], {}

    def bytes(self) -> int:
        """Return the bytes of the retained keys and values."""
        return sum(cache.bytes() for _, _, cache in self._row_groups)


def _check_not_packed(position_ids: Tensor | None, new_tokens: int, padding: list[int]) -> None:
    """Raise UserError if a row of the new tokens contains several packed sequences.

    `padding` is the number of padding tokens at the start of each row of the new tokens; a value below 1 means no
    padding. Positions of shape (3, batch, time), for images, are not checked. For shape (4, batch, time), index 0
    contains the text positions, which are checked.
    """
    if position_ids is not None and position_ids.ndim == 3 and len(position_ids) == 4:
        position_ids = position_ids[0]
    if position_ids is not None and position_ids.ndim == 2 and new_tokens > 1:
        columns = torch.arange(new_tokens, device=position_ids.device)
        check_positions(position_ids, columns >= torch.tensor(padding, device=position_ids.device)[:, None])


def _checked_padding(mask: Tensor, columns: int, previous: list[int] | None) -> list[int]:
    """Return the number of padding tokens on the left of each row.

    If `previous` is given, it is returned, because counting padding synchronises with the GPU. Raises UserError for a
    mask of another shape and for padding on the right.
    """
    check_mask(mask, columns)
    if previous is not None:
        return previous
    padding = count_padding(mask)
    if not mask[:, -1].all():
        raise UserError("attention_mask: padding after tokens; pad batches on the left (padding_side='left')")
    return padding


REMEDIES = {
    "DecoderModel": "pass attend=PrunedCache(...) to a formerlab decoder",
    "PeftModel": "prune model.get_base_model(), which includes the adapters",
    "OptimizedModule": "prune the model before torch.compile (model._orig_mod)",
    "Pipeline": "prune the pipeline's model, pipe.model",
    **dict.fromkeys(
        ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "AveragedModel"),
        "prune the wrapped model, model.module",
    ),
}
"""How to prune the model inside a wrapper, by class name of the wrapper."""


@contextmanager
def prune(model: Any, policy: Policy, budget: AnyBudget, *, context: int | None = None) -> Iterator[None]:
    """Prune the KV cache of a causal language model of transformers inside the block.

    `model.generate` and `model(...)` work as usual: greedy, sampling and beam search, for batches padded on the left. A
    stepwise policy evicts keys during prefill and generation (`PrunedCache`). A one-shot policy, such as SnapKV,
    compresses the prompt and retains all later tokens (`CompressedCache`).

    `budget` is a count of keys per key-value head (int), or a fraction of each row's prompt without padding (float). A
    fraction gives a count that stays constant during generation. With `use_cache=False`, every call starts a new
    prompt. `context` is the longest text in tokens; models with sliding-window layers need it. Gradients and dropout
    are disabled in the block. The model is restored after the block.

    Raises UserError for a model that cannot be pruned (`CausalLM` tests the model at the start of the block), a policy
    that cannot run in a cache, an invalid budget, and unsupported calls.
    """
    if not isinstance(model, PreTrainedModel) or not model.can_generate() or model.config.is_encoder_decoder:
        remedies = [REMEDIES[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in REMEDIES]
        remedy = f"; {remedies[0]}" if remedies else ""
        raise UserError(f"prune takes a causal language model of transformers, not a {type(model).__name__}{remedy}")
    if hasattr(model.forward, "is_pruned"):
        raise UserError(f"this {type(model).__name__} is pruned already; leave its prune block first")
    sub_configs = (getattr(model.config, key) for key in model.config.sub_configs)
    all_configs = [config for config in (model.config, *sub_configs) if config is not None]
    configs = [(config, config._attn_implementation_internal) for config in all_configs]
    forward = model.__dict__.get("forward")
    with evaluating(model, nullcontext):
        try:
            if isinstance(model, FormerlabForCausalLM):
                position = model.decoder.position
            else:
                position = CausalLM(model, context).position
            layers = model.config.get_text_config(decoder=True).num_hidden_layers
            if isinstance(policy, Pyramid) and policy.layers != layers:
                raise UserError(f"{policy!r}: the model has {layers} layers; give layers={layers}")
            make_cache = functools.partial(PolicyCache, position=position, context=context)
            model.forward = _pruned_forward(model, policy, budget, make_cache)
            yield
        finally:
            model.__dict__.pop("forward", None)
            if forward is not None:
                model.forward = forward
            for config, implementation in configs:  # `set_attn_implementation` rejects some values, such as MPT's None
                config._attn_implementation_internal = implementation


def _pruned_forward(
    model: Any, policy: Policy, budget: AnyBudget, make_cache: Callable[[Policy, AnyBudget], PolicyCache]
) -> Callable[..., Any]:
    """Return a forward function for the model that replaces an empty or missing cache by a pruned cache."""
    forward, reference = model.forward, make_cache(policy, budget)  # raises UserError for an invalid policy or budget
    signature = inspect.signature(forward)
    name = next((name for name in CACHE_NAMES if name in signature.parameters), None)
    if name is None:
        raise UserError(f"{type(model).__name__}: its forward pass does not accept a KV cache")
    keyword = next((field.name for field in signature.parameters.values() if field.kind is field.VAR_KEYWORD), "")

    def loss_under(policy: Policy, tokens: Tensor) -> float:
        count = min(SINK_TOKENS // 2, max(2 * SINK, resolve_budget(budget, SINK_TOKENS)))
        cache = make_cache(policy, count)
        cache.prepare(tokens, None)
        with torch.no_grad(), attending(cache):
            logits = forward(**{"input_ids": tokens, name: cache}).logits
        return float(cross_entropy(logits[0, :-1].float(), tokens[0, 1:]))

    @functools.wraps(forward)
    def forward_with_pruned_cache(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        arguments |= arguments.pop(keyword, {})
        if arguments.get("output_attentions", getattr(model.config, "output_attentions", False)):
            problem = "a pruned cache returns no attention weights; request them outside the block"
            raise UserError(f"output_attentions: {problem}")
        cache, pass_cache = take_cache(arguments), arguments.get("use_cache") is not False
        _check_cache(cache, reference)
        if not isinstance(cache, PolicyCache):
            pass_cache, cache = pass_cache or cache is not None, make_cache(policy, budget).convert(cache)
        tokens = arguments.get("input_ids")
        tokens = arguments.get("inputs_embeds") if tokens is None else tokens
        if tokens is not None:
            cache.prepare(tokens, arguments.get("attention_mask"), arguments.get("position_ids"))
            _warn_about_sink(model, cache, arguments, loss_under)
        if pass_cache:
            arguments[name] = cache
        with torch.no_grad(), attending(cache):
            return forward(**arguments)

    forward_with_pruned_cache.is_pruned = True  # type: ignore[attr-defined]
    return forward_with_pruned_cache


def _warn_about_sink(
    model: Any, cache: PolicyCache, arguments: dict[str, Any], loss_under: Callable[[Policy, Tensor], float]
) -> None:
    """Warn if the policy evicts an attention sink.

    The criterion: the loss of a text is more than twice the loss with the full cache, and retaining the first SINK
    tokens more than halves it. The text is the end of the first row of a prompt of at least SINK_TOKENS tokens.
    `loss_under` returns its loss under a policy. Each policy is tested once per model.
    """
    tokens, mask, policy = arguments.get("input_ids"), arguments.get("attention_mask"), cache.policy
    if cache.get_seq_length() or cache.budget == 1.0 or tokens is None or tokens.shape[1] < SINK_TOKENS:
        return
    if not isinstance(policy, Eviction) or isinstance(policy, Full) or policy.sink or policy.protect:
        return
    if (mask is not None and not mask[0, -SINK_TOKENS:].all()) or policy in _tested_policies.setdefault(model, set()):
        return
    _tested_policies[model].add(policy)
    text = tokens[:1, -SINK_TOKENS:]
    with_sink = policy.model_copy(update={"sink": SINK})
    pruned, protected, full = (loss_under(each, text) for each in (policy, with_sink, Full()))
    if pruned > 2 * full and protected < pruned / 2:
        remedy = f"StreamingLLM(sink={SINK})" if isinstance(policy, Local) else f"sink={SINK}"
        warnings.warn(
            f"{type(policy).__name__} with sink=0 evicts this model's attention sink: the loss on {SINK_TOKENS} tokens "
            f"is {pruned:.2f} nats, {full:.2f} with the full cache and {protected:.2f} with the first {SINK} tokens "
            f"retained; use {remedy}",
            stacklevel=2,
        )


def _check_cache(cache: Any, reference: PolicyCache) -> None:
    """Raise UserError for a StaticCache, and for a cache that was filled without pruning, or with another policy or
    budget than `reference`.
    """
    if isinstance(cache, StaticCache):
        raise UserError(
            f"{CACHE_FIELD}: a StaticCache has memory for every token, so pruning would save none; give a DynamicCache "
            "or no cache, and leave out cache_implementation='static'"
        )
    if isinstance(cache, PolicyCache):
        if (cache.policy, cache.budget) != (reference.policy, reference.budget):
            configuration = f"{cache.policy!r} and budget {cache.budget}"
            raise UserError(f"{CACHE_FIELD}: this cache was filled with {configuration}; give an empty cache")
    elif cache is not None and cache.get_seq_length() > 0:
        raise UserError(f"{CACHE_FIELD}: this cache was filled without pruning; give an empty cache")
