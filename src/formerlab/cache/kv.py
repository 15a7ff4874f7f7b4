"""The full KV cache, for decoding token by token."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.layers.shapes import AnyHeads, Heads, KeyHeads


@dataclass
class Buffer:
    """Keys and values of one layer, with spare capacity for new tokens."""

    keys: Float[Tensor, "batch key_heads capacity d_head"]
    values: Float[Tensor, "batch key_heads capacity d_value"]
    length: int = 0

    def append(self, k: AnyHeads, v: AnyHeads) -> None:
        """Append keys and values; double the buffer when it is full."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            self.reserve(max(end, 2 * self.keys.shape[2]))
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end

    def reserve(self, capacity: int) -> None:
        """Increase the capacity to at least `capacity` tokens."""
        padding = (0, 0, 0, max(0, capacity - self.keys.shape[2]))
        self.keys, self.values = F.pad(self.keys, padding), F.pad(self.values, padding)


class KVCache:
    """An attention function with a full KV cache, so that each token is computed once.

    Call `model(prompt, attend=cache)`, then `model(token, attend=cache, start=cache.length)` for each new token. The
    cache is for inference: gradients do not flow through it. All sequences of a batch have the same length.
    """

    def __init__(self, capacity: int = 64) -> None:
        """`capacity` is the initial size of the buffers in tokens."""
        self._capacity = capacity
        self._layers: dict[int, Buffer] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def append(self, layer: int, k: AnyHeads, v: AnyHeads) -> tuple[AnyHeads, AnyHeads]:
        """Append keys and values to a layer; return all keys and values of the layer."""
        if layer not in self._layers:
            shape = *k.shape[:2], max(self._capacity, k.shape[2]), k.shape[3]
            self._layers[layer] = Buffer(k.new_zeros(shape), v.new_zeros(*shape[:3], v.shape[3]))
        buffer = self._layers[layer]
        buffer.append(k, v)
        return buffer.keys[:, :, : buffer.length], buffer.values[:, :, : buffer.length]

    @torch.inference_mode(False)  # the buffers must stay writable outside inference mode
    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Append keys and values; return softmax(q k^T / sqrt(d_head)) v over the keys up to each query."""
        keys, values = self.append(layer, k, v)
        # SDPA's causal flag is right for the first call only; for several later tokens, `mask` returns a mask
        is_prompt = q.shape[2] == keys.shape[2]
        mask = self.mask(layer, q, keys)
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=is_prompt, enable_gqa=q.shape[1] != k.shape[1]
        )

    def mask(self, layer: int, q: Heads, keys: KeyHeads) -> Tensor | None:
        """Return the mask (..., queries, keys) of the keys that the new queries see, or None if no mask is needed."""
        new, count = q.shape[2], keys.shape[2]
        return torch.ones(new, count, dtype=torch.bool, device=q.device).tril(count - new) if 1 < new < count else None

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Replace sequence i by sequence `rows[i]`, as in beam search."""
        for buffer in self._layers.values():
            buffer.keys, buffer.values = buffer.keys[rows], buffer.values[rows]

    @property
    def length(self) -> int:
        """Number of tokens in the cache; the next token has this position."""
        return min((buffer.length for buffer in self._layers.values()), default=0)

    def bytes(self) -> int:
        """Return the bytes of the keys and values, without spare capacity."""
        buffers = self._layers.values()
        return bytes_of(*(x[:, :, : buffer.length] for buffer in buffers for x in (buffer.keys, buffer.values)))


def bytes_of(*tensors: Tensor) -> int:
    """Return the bytes of the elements of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
