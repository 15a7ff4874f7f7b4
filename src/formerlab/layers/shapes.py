"""Shapes of tensors that several layers and caches share."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Stream = Float[Tensor, "batch time width"]
"""The residual stream."""
Heads = Float[Tensor, "batch heads time d_head"]
"""Queries, or keys and values with one key-value head per query head."""
KeyHeads = Float[Tensor, "batch key_heads keys d_head"]
"""Keys or values; grouped-query attention has fewer key-value heads than query heads."""
AnyHeads = Float[Tensor, "_ heads _ _"]
"""Queries, keys or values (batch, heads, time, d_head). The type checker compares only the number of heads;
the other sizes may differ between tensors."""
Mask = Bool[Tensor, "_ 1 1 _"]
"""True at keys that are tokens, False at padding: (batch, 1, 1, keys)."""
Start = int | Int[Tensor, ""]
"""Position of the first token; with a tensor on the device, one CUDA graph serves all positions."""
