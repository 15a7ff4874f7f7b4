"""transformers' DynamicCache in our decoders, so that nothing but the cache differs from ours."""

from importlib.util import find_spec

from torch.nn import functional as F

from formerlab.layers.attention import Heads, KeyHeads

DYNAMIC = "dynamic_cache"
"""What rows call it."""


def has_dynamic() -> bool:
    """Say whether transformers is installed."""
    return find_spec("transformers") is not None


class DynamicAttend:
    """An `attend` that keeps all keys and values in a DynamicCache, which takes new memory for every token."""

    def __init__(self) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache()

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in new keys and values; return softmax(q k^T / sqrt(d_head)) v over all no later than each query.

        More than one token at a time is a prompt, before which the cache is empty.
        """
        keys, values = self._cache.update(k, v, layer)
        return F.scaled_dot_product_attention(
            q, keys, values, is_causal=q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1]
        )

    @property
    def length(self) -> int:
        """Tokens taken in."""
        return int(self._cache.get_seq_length())

    def bytes(self) -> int:
        """Bytes of the keys and values held."""
        tensors = [tensor for layer in self._cache.layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
