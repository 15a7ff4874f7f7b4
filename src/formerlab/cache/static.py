"""A decoding step with constant shapes, which torch.compile traces as one graph and a CUDA graph replays.

The position is a tensor on the device, keys and values are written into preallocated buffers, and masks are computed
from the position, so a step never waits for the device.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.kv import Buffer, KVCache
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.models.decoder import DecoderModel

WARM_UP = 2
"""Number of steps without a CUDA graph, before its capture. These steps compile (if `compute` is compiled), load
libraries and allocate memory."""


def is_static(cache: Any) -> bool:
    """Return whether `StaticStep` supports a cache: a `KVCache` with a prompt, or a `PrunedCache` that has reached its
    budget and does not re-index positions.
    """
    if hasattr(cache, "is_full"):  # PrunedCache; importing it would add its modules to the code hash
        return bool(cache.is_full and not cache.policy.reindexes_positions)
    return type(cache) is KVCache and cache.length > 0


class StaticStep:
    """Feed a model one token per sequence and return the next logits, with a cache that has read the prompt.

    `cache` must satisfy `is_static`. The step works on its buffers, so `cache` stays usable. The buffers of a `KVCache`
    are extended by `tokens` slots, and at most `tokens` steps can follow. A `PrunedCache` has a constant size.
    """

    compute: Callable[[], Float[Tensor, "batch vocabulary"]]
    """Computes one step; set `step.compute = torch.compile(step.compute)` to compile it."""

    @torch.inference_mode(False)  # the buffers must stay writable outside inference mode
    @torch.no_grad()
    def __init__(self, model: DecoderModel, cache: Any, tokens: int) -> None:
        self.model, self.cache, self.compute = model, cache, self._compute
        self.layers: dict[int, Any] = cache._layers
        for layer in self.layers.values():
            if isinstance(layer, Buffer):
                layer.reserve(layer.length + tokens)
            else:
                layer.state.vacant = layer.state.positions.argmax(-1, keepdim=True)
        batch, device = len(self.layers[0].keys), self.layers[0].keys.device
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.position = torch.full((), cache.length, device=device)
        self.steps, self.graph = 0, torch.cuda.CUDAGraph() if device.type == "cuda" else None

    def __call__(self, token: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch vocabulary"]:
        """Feed the token; on a GPU the next step overwrites the result."""
        self.token.copy_(token)
        if self.graph is None or self.steps < WARM_UP:
            self.logits = self.compute()
        else:
            if self.steps == WARM_UP:
                with torch.cuda.graph(self.graph):
                    self.logits = self.compute()
            self.graph.replay()
        self.steps += 1
        for layer in self.layers.values():
            layer.length += 1
        return self.logits

    def _compute(self) -> Float[Tensor, "batch vocabulary"]:
        logits: Tensor = self.model(self.token, attend=self._attend, start=self.position)[:, -1]
        self.position.add_(1)
        return logits

    def _attend(self, index: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        layer = self.layers[index]
        if not isinstance(layer, Buffer):
            state = layer.state
            scores, vacant = state.scores, state.vacant
            out: Tensor = self.cache.advance(index, layer, q, k, v, self.position)
            state.scores, state.vacant = scores.copy_(state.scores), vacant.copy_(state.vacant)
            return out
        layer.keys.index_copy_(2, self.position.view(1), k)
        layer.values.index_copy_(2, self.position.view(1), v)
        mask = torch.arange(layer.keys.shape[2], device=q.device)[None] <= self.position
        return F.scaled_dot_product_attention(
            q, layer.keys, layer.values, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
        )
