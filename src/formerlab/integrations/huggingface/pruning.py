"""Anybody's causal model of transformers with a pruned cache, for as long as a `with` block lasts."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from formerlab.cache import Budget
from formerlab.cache.policies.policy import Policy
from formerlab.errors import UserError
from formerlab.integrations.huggingface.attention import attending
from formerlab.integrations.huggingface.cache_argument import FIELD, NAMES, take_cache
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.integrations.huggingface.modeling import FormerlabForCausalLM
from formerlab.integrations.huggingface.policy_cache import PolicyCache


@contextmanager
def prune(model: Any, policy: Policy, budget: Budget, *, context: int | None = None) -> Iterator[None]:
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
    _check(model)
    training = [module for module in model.modules() if module.training]
    implementations = _implementations(model.config)
    forward = model.__dict__.get("forward")
    try:
        if isinstance(model, FormerlabForCausalLM):
            position = model.eval().decoder.position
        else:
            position = CausalLM(model, context).position
        new = functools.partial(PolicyCache, policy, budget, position, context)
        new()  # refuse a policy or a budget here
        model.forward = _pruned(model, new)
        yield
    finally:
        model.__dict__.pop("forward", None)
        if forward is not None:
            model.forward = forward
        _restore(model.config, implementations)
        for module in training:
            module.training = True


def _check(model: Any) -> None:
    if not isinstance(model, PreTrainedModel) or not model.can_generate() or model.config.is_encoder_decoder:
        raise UserError(
            f"prune takes a causal model of transformers, not a {type(model).__name__}; to a decoder of ours "
            "give attend=PrunedCache(...)"
        )
    if hasattr(model.forward, "is_pruned"):
        raise UserError(f"this {type(model).__name__} is pruned already; leave that block first")


def _implementations(config: Any) -> dict[str, Any]:
    """Return the names of the attention functions of a config and those inside it, as transformers takes them back."""
    inner = {key: part for key in config.sub_configs if (part := getattr(config, key)) is not None}
    return {"": config._attn_implementation} | {key: _implementations(part) for key, part in inner.items()}


def _restore(config: Any, implementations: dict[str, Any]) -> None:
    """Write the names back; `set_attn_implementation` refuses some that models have by themselves (MPT's None)."""
    config._attn_implementation_internal = implementations[""]
    for key, part in implementations.items():
        if key:
            _restore(getattr(config, key), part)


def _pruned(model: Any, new: Callable[[], PolicyCache]) -> Callable[..., Any]:
    """Return a model's forward pass with our cache in the place of every empty one, and of none."""
    forward = model.forward
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
        if not isinstance(cache, PolicyCache):
            if cache is not None and cache.get_seq_length() > 0:
                raise UserError(f"{FIELD}: this cache was begun without pruning; begin with an empty one")
            mine, cache = mine or cache is not None, new().in_place_of(cache)
        tokens = given.get("input_ids")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is not None:
            cache.expect(tokens, given.get("attention_mask"))
        if mine:
            given[name] = cache
        with torch.no_grad(), attending(cache):
            return forward(**given)

    pruned.is_pruned = True  # type: ignore[attr-defined]
    return pruned
