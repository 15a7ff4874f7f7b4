"""One-shot compression: a KV cache that is compressed once, after the prompt."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import AnyBudget, resolve_budget
from formerlab.cache.eviction import Eviction, coefficients
from formerlab.cache.kv import KVCache
from formerlab.cache.policies.policy import (
    Importance,
    OneShot,
    Policy,
    Prompt,
    by_group,
    check_configuration,
    largest,
    masked_softmax,
    places,
    precise,
)
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads

QUERIES = 128  # queries whose attention is in memory at a time


class CompressedCache(KVCache):
    """An attention function that reads the prompt without pruning and then retains `budget` of its keys and values.

    Later tokens see the retained keys and each other. Nothing is evicted after the prompt, so the cache grows with
    every token. A ratio is a fraction of the prompt length, with at least one key. Keys keep their original positions.
    `position` is the model's position encoding; only policies that use queries before rotation need it. For inference
    only: gradients do not flow through the cache. All sequences of a batch have the same length.

    Step-by-step eviction also prunes while the prompt is read and while decoding, which is a harder task at the same
    budget. Report the two modes in separate tables.

    Raises UserError for a policy that has no score for the keys of a prompt, for an unsuitable `position`, and for an
    invalid budget.
    """

    def __init__(self, policy: Policy, budget: AnyBudget, position: PositionEncoding | None = None) -> None:
        super().__init__()
        budget = check_configuration(policy, budget, stepwise=False)
        if not (isinstance(policy, OneShot) or (isinstance(policy, Eviction) and policy.is_online)):
            raise UserError(f"{policy!r} cannot compress a prompt: it masks whole sequences; run it as a Simulation")
        if isinstance(policy, Eviction) and coefficients(policy) is None:
            raise UserError(f"{policy!r} cannot compress: its score is not declared linear, decay S + gain p")
        if policy.protect is not None:
            raise UserError(f"{policy!r}: compression evicts keys of the prompt, so leave protect='prompt' out")
        if policy.reindexes_positions:
            raise UserError(f"{policy!r}: compression keeps positions; use positions='kept'")
        self.policy = policy
        self.budget = budget
        self.position = policy.check_position(position)
        self._kept: dict[int, Int[Tensor, "batch key_heads kept"]] = {}
        self._lengths: dict[int, int] = {}

    @torch.inference_mode(False)  # the buffers must stay writable outside inference mode
    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Add keys and values; return softmax(q k^T / sqrt(d_head)) v over the keys that each query sees."""
        self._lengths[layer] = self._lengths.get(layer, 0) + q.shape[2]
        if layer in self._kept:
            return super().__call__(layer, q, k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        self._kept[layer] = self._choose(layer, q, k, v)
        self.take(layer, *(x.take_along_dim(self._kept[layer][..., None], 2) for x in (k, v)))
        return out

    def _choose(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Int[Tensor, "batch key_heads kept"]:
        """Return the positions of the retained keys: protected keys, and the keys of largest importance."""
        policy = self.policy
        assert isinstance(policy, OneShot | Eviction)
        batch, _, time, _ = q.shape
        count = min(max(1, resolve_budget(self.budget, time)), time)
        prompt = Prompt(q, k, v, [count] * batch, [time] * batch, layer)
        if isinstance(policy, OneShot):
            importance = policy.importance(prompt, self.position)
        else:
            importance = accumulated(policy, prompt)
        sink, recent = policy.protected(count)
        place, held = torch.arange(time, device=q.device), min(policy.capacity(count), time)
        importance = importance.masked_fill((place < sink) | (place >= time - recent), torch.inf)
        chosen = largest(importance, torch.full(importance.shape[:-1], held, device=q.device))
        return places(chosen, held).expand(-1, k.shape[1], -1)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        super().reorder(rows)
        self._kept = {layer: kept[rows] for layer, kept in self._kept.items()}

    @property
    def length(self) -> int:
        """Number of tokens so far, including dropped ones, which is the position of the next token."""
        return min(self._lengths.values(), default=0)

    def kept(self, layer: int) -> Int[Tensor, "batch key_heads kept"]:
        """Return the positions of the layer's retained prompt keys in ascending order."""
        return self._kept[layer]


def accumulated(policy: Eviction, prompt: Prompt) -> Importance:
    """Return the scores of a step-by-step policy after the last query of a prompt without eviction.

    For S <- decay S + gain p the score is gain times the sum over q of decay^(T - 1 - q) p[q, k], a weighted column sum
    of the attention (the codes of H2O and A2SF compute it for long prompts).
    """
    rule = coefficients(policy)
    assert rule is not None, "CompressedCache refuses such a policy"
    decay, gain = rule
    time, key_heads = prompt.k.shape[2], prompt.k.shape[1]
    state = policy.empty_state(prompt.budgets, key_heads, time, precise(prompt.k.new_empty(0)))
    state.positions.copy_(torch.arange(time, device=state.positions.device))
    initial = policy.entering(prompt.k, state.positions.shape[1], prompt.layer, state.scores)
    age = torch.arange(time, 0, -1, device=prompt.k.device, dtype=state.scores.dtype)
    if initial is not None:
        state.scores += initial * decay**age
    for start in range(0, time, QUERIES):
        end = min(start + QUERIES, time)
        if gain * decay ** (time - end):  # skip weights that underflow
            weights = gain * decay ** (age[start:end] - 1)
            rows = attention_rows(prompt, start, end)
            state.scores += policy.reduce_over_heads((rows * weights[:, None].to(rows.dtype)).sum(3))
    return policy.eviction_priority(state, prompt.k, time - 1)


def attention_rows(prompt: Prompt, start: int, end: int) -> Float[Tensor, "batch key_heads groups queries time"]:
    """Return the unpruned attention of queries start, ..., end - 1, in at least float32."""
    q, k = prompt.q[:, :, start:end], prompt.k
    logits = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]) @ k.unsqueeze(2).transpose(-1, -2)
    later = torch.ones(end - start, k.shape[2], dtype=torch.bool, device=k.device).triu(start + 1)
    return masked_softmax(logits, ~later)
