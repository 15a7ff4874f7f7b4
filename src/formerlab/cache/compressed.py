"""The KV cache that is compressed once, after its prompt: another mode than eviction step by step."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import Budget, resolve_budget
from formerlab.cache.eviction import Eviction, coefficients
from formerlab.cache.kv import KVCache
from formerlab.cache.policies.policy import Policy, Prompt, check_configuration, places
from formerlab.cache.prefill import OneShot, kept
from formerlab.errors import UserError
from formerlab.layers.attention import Heads, KeyHeads
from formerlab.layers.position import PositionEncoding


class CompressedCache:
    """An `attend` whose first call reads a prompt without pruning and then keeps `budget` of its keys and values.

    Later tokens see these and each other; nothing is evicted any more, so the cache grows with every token. A ratio is
    one of the prompt's length. Keys keep their original positions. `position` is the model's position encoding, for
    policies that look at queries before their rotation. For inference: no gradient passes. All sequences of a batch
    have the same length.

    Step-by-step eviction prunes the prompt too, and goes on while decoding; at equal budgets its numbers are those of a
    harder task, so the two modes belong into different tables.

    Raises UserError for a policy without a score for the keys of a prompt, and for an impossible budget.
    """

    def __init__(self, policy: Policy, budget: Budget, position: PositionEncoding | None = None) -> None:
        check_configuration(policy, budget)
        if not (isinstance(policy, OneShot) or (isinstance(policy, Eviction) and policy.is_online)):
            raise UserError(f"{policy!r} cannot compress a prompt: it masks whole sequences; run it as a Simulation")
        if isinstance(policy, Eviction) and coefficients(policy) is None:
            raise UserError(f"{policy!r} cannot compress: its score is not of the form decay S + gain p")
        if policy.reindexes_positions:
            raise UserError(f"{policy!r}: compression keeps positions; use positions='kept'")
        self.policy = policy
        self.budget = budget
        self.position = position
        self._cache = KVCache()
        self._kept: dict[int, Int[Tensor, "batch key_heads kept"]] = {}
        self._lengths: dict[int, int] = {}

    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Take in the new keys and values; return softmax(q k^T / sqrt(d_head)) v over what each query finds."""
        self._lengths[layer] = self._lengths.get(layer, 0) + q.shape[2]
        if layer in self._kept:
            return self._cache(layer, q, k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        self._kept[layer] = self._choose(layer, q, k, v)
        index = self._kept[layer][..., None]
        self._cache.take(layer, *(x.gather(2, index.expand(-1, -1, -1, x.shape[3])) for x in (k, v)))
        return out

    def _choose(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Int[Tensor, "batch key_heads kept"]:
        if isinstance(self.policy, Eviction) and self.policy.scope == "head" and q.shape[1] != k.shape[1]:
            raise UserError(f"{self.policy!r}: query heads share key heads; use scope='group' or 'layer'")
        assert isinstance(self.policy, OneShot | Eviction)
        batch, _, time, _ = q.shape
        prompt = Prompt(q, k, v, [min(resolve_budget(self.budget, time), time)] * batch, [time] * batch, layer)
        chosen = kept(self.policy, prompt, self.position)
        return places(chosen, min(self.policy.capacity(prompt.budgets[0]), time)).expand(-1, k.shape[1], -1)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Put the sequence `rows[i]` in the place of sequence i, as beam search does; some come twice, some go."""
        self._cache.reorder(rows)
        self._kept = {layer: kept[rows] for layer, kept in self._kept.items()}

    @property
    def length(self) -> int:
        """Tokens taken in by every layer, dropped ones included: the position of the next one."""
        return min(self._lengths.values(), default=0)

    def kept(self, layer: int) -> Int[Tensor, "batch key_heads kept"]:
        """Return the positions of the prompt that the layer kept, ascending."""
        return self._kept[layer]

    def bytes(self) -> int:
        """Bytes of the keys and values held."""
        return self._cache.bytes()

    def allocated_bytes(self) -> int:
        """Bytes of the buffers of keys and values, room to spare included."""
        return self._cache.allocated_bytes()
