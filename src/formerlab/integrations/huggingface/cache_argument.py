"""The cache among the arguments of a forward pass, by the name that this release of transformers has for it."""

from dataclasses import fields
from typing import Any

from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from formerlab.errors import UserError

NAMES = ("cache", "past_key_values")
"""The argument since transformers 5.24, and before."""
OTHERS = ("cache_params", "past_key_value", "layer_past", "past", "mems", "state")
"""What models with another kind of memory call it."""
FIELD = next(name for name in NAMES if name in {field.name for field in fields(CausalLMOutputWithPast)})
"""Where models return their cache."""


def take_cache(arguments: dict[str, Any]) -> Cache | None:
    """Take the cache out of the arguments of a forward pass and return it.

    Raises UserError for two, for a cache under another name, and for what is no `Cache` of transformers.
    """
    given = {name: arguments.pop(name, None) for name in NAMES}
    caches = [(name, value) for name, value in (given | arguments).items() if value is not None and _holds(name, value)]
    for name, value in caches:
        if name not in NAMES or not isinstance(value, Cache):
            raise UserError(f"{name}: no cache of transformers that this model can use; give a DynamicCache as {FIELD}")
    if len(caches) > 1:
        raise UserError(f"{' and '.join(name for name, _ in caches)}: a call has one cache; give it as {FIELD}")
    return caches[0][1] if caches else None


def _holds(name: str, value: Any) -> bool:
    return name in (*NAMES, *OTHERS) or isinstance(value, Cache)
