"""Our `attend` as the attention of models of transformers.

transformers lets an attention function be registered by name. It must be registered together with a function that makes
its masks: without one the mask arrives as None, and a model that relies on it is silently not causal.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from formerlab.errors import UserError
from formerlab.layers.attention import Attend

NAME = "formerlab"
"""What `set_attn_implementation` calls our function."""
FOREIGN = ("softcap", "position_bias", "s_aux", "sinks")
"""Arguments that change attention in ways that an `attend` cannot follow."""

_current: ContextVar[Attend | None] = ContextVar("attend", default=None)


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Let all attention of models with our implementation go through `attend`."""
    token = _current.set(attend)
    try:
        yield
    finally:
        _current.reset(token)


def current_attend() -> Attend | None:
    """Return the `attend` of the innermost `attending`, if any."""
    return _current.get()


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the current `attend`'s output for one layer, as (batch, time, heads, d_head). Without one, as in a plain
    call of the model, it is that of `sdpa` with its mask. Queries may come scaled (OPT),
    or with another factor than 1/sqrt(d_head); what an `attend` gets is to be divided by sqrt(d_head).
    """
    attend = _current.get()
    if attend is None:
        given = {"dropout": dropout, "scaling": scaling} | others
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)[0], None
    for name in FOREIGN:
        if others.get(name) is not None:
            raise UserError(f"{type(module).__name__}: attention with {name} cannot run under a cache policy")
    factor = 1.0 if scaling is None else scaling * math.sqrt(query.shape[-1])
    query = query if math.isclose(factor, 1.0, rel_tol=1e-12) else query * factor
    layer: int = module.layer_idx  # type: ignore[assignment]
    return attend(layer, query, key, value).transpose(1, 2).contiguous(), None


def masks(*arguments: Any, **options: Any) -> Tensor | None:
    """Return the masks of `sdpa`, and none where an `attend` says what each query sees."""
    return None if _current.get() is not None else sdpa_mask(*arguments, **options)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, masks)
