"""Shapes of tensors that several layers and caches share."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Stream = Float[Tensor, "batch time width"]
"""The residual stream."""
Heads = Float[Tensor, "batch heads time d_head"]
"""Queries, or keys and values of a model in which every head has its own."""
KeyHeads = Float[Tensor, "batch key_heads keys d_head"]
"""Keys or values; with grouped-query attention a model has fewer key heads than heads."""
AnyHeads = Float[Tensor, "_ heads _ _"]
"""Queries, keys or values of cross-attention: (batch, heads, time, d_head); only the number of heads is shared."""
Mask = Bool[Tensor, "_ 1 1 _"]
"""True at keys that are tokens, False at padding: (batch, 1, 1, keys)."""
Start = int | Int[Tensor, ""]
"""Position of the first token: a number, or a tensor on the device, so that a decoding step does not depend on it."""
