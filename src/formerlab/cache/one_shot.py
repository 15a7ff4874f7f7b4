"""One-shot compression: a KV cache that evicts keys only once, after the prompt."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import AnyBudget, resolve_budget
from formerlab.cache.eviction import Eviction, coefficients
from formerlab.cache.kv import KVCache, bytes_of
from formerlab.cache.policies.policy import (
    Importance,
    OneShot,
    Policy,
    Prompt,
    at_least_float32,
    by_group,
    check_configuration,
    marked_indices,
    masked_softmax,
)
from formerlab.errors import UserError
from formerlab.kernels import EMPTY_POSITION
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads

QUERY_CHUNK = 128
"""Number of queries whose attention is computed at a time."""


class CompressedCache(KVCache):
    """An attention function that reads the prompt without pruning and then retains `budget` of its keys and values.

    Later keys are never evicted, so the cache grows with every token. A fraction refers to the prompt length and gives
    at least one key. Keys keep their original positions. Heads that retain fewer keys than others (`HeadAdaptive`) have
    empty slots, which attention masks. `position` is the model's position encoding; only policies that use queries
    before rotation need it. The cache is for inference: gradients do not flow through it. All sequences of a batch have
    the same length.

    Report results separately from step-by-step eviction, which is harder at the same budget because it also prunes
    during prefill and decoding.

    Raises UserError unless the scoring policy is one-shot or a stepwise policy that declares `linear`; also for a
    policy that protects the prompt or re-indexes positions, for an unsuitable `position`, and for an invalid budget.
    """

    def __init__(self, policy: Policy, budget: AnyBudget, position: PositionEncoding | None = None) -> None:
        super().__init__()
        budget = check_configuration(policy, budget, stepwise=False)
        scorer = policy.scorer
        if not (isinstance(scorer, OneShot) or (isinstance(scorer, Eviction) and scorer.is_online)):
            raise UserError(f"{policy!r} cannot compress a prompt: it masks whole sequences; run it as a Simulation")
        if isinstance(scorer, Eviction) and coefficients(scorer) is None:
            raise UserError(
                f"{policy!r} cannot compress: its score is not declared linear (decay * S + gain * p); define `linear`"
            )
        if scorer.protect is not None:
            raise UserError(f"{policy!r}: compression evicts keys of the prompt; leave out protect='prompt'")
        if policy.reindexes_positions:
            raise UserError(f"{policy!r}: compression keeps positions; use positions='kept'")
        self.policy = policy
        self.budget = budget
        self.position = policy.check_position(position)
        self._retained: dict[int, Int[Tensor, "batch key_heads retained"]] = {}
        self._empty: dict[int, Bool[Tensor, "batch key_heads retained"]] = {}
        self._lengths: dict[int, int] = {}

    @torch.inference_mode(False)  # the buffers must stay writable outside inference mode
    @torch.no_grad()
    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Add keys and values; return softmax(q k^T / sqrt(d_head)) v over the keys that each query sees."""
        self._lengths[layer] = self._lengths.get(layer, 0) + q.shape[2]
        if layer in self._retained:
            return super().__call__(layer, q, k, v)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        marked, count = self._select(layer, q, k, v)
        if self.policy.layer_policy.is_ragged:
            counts = marked.sum(-1, keepdim=True)
            count = int(counts.max())
            self._empty[layer] = torch.arange(count, device=q.device) >= counts
        retained = marked_indices(marked, count)
        self.append(layer, *(x.take_along_dim(retained[..., None], 2) for x in (k, v)))
        if layer in self._empty:
            retained = retained.masked_fill(self._empty[layer], EMPTY_POSITION)
        self._retained[layer] = retained
        return out

    def _select(
        self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads
    ) -> tuple[Bool[Tensor, "batch key_heads time"], int]:
        """Return the mask of retained keys, and the mean number of retained keys per head."""
        policy, scorer = self.policy.layer_policy, self.policy.scorer
        assert isinstance(scorer, OneShot | Eviction)
        batch, _, time, _ = q.shape
        count = min(self.policy.layer_budget(max(1, resolve_budget(self.budget, time)), layer), time)
        importance = importance_of(scorer, Prompt(q, k, v, [count] * batch, [time] * batch, layer), self.position)
        sink, recent = scorer.protected(count)
        positions, capacity = torch.arange(time, device=q.device), min(scorer.capacity(count), time)
        importance = importance.masked_fill((positions < sink) | (positions >= time - recent), torch.inf)
        return policy.select(importance, capacity).expand(-1, k.shape[1], -1), capacity

    def mask(self, layer: int, q: Heads, keys: KeyHeads) -> Tensor | None:
        visible = super().mask(layer, q, keys)
        if layer not in self._empty:
            return visible
        empty = F.pad(self._empty[layer], (0, keys.shape[2] - self._empty[layer].shape[2]))
        filled = ~empty.repeat_interleave(q.shape[1] // keys.shape[1], 1).unsqueeze(2)
        return filled if visible is None else filled & visible

    def bytes(self) -> int:
        """Return the bytes of the retained keys and values, without spare capacity and empty slots."""
        empty = 0
        for layer, slots in self._empty.items():
            buffer = self._layers[layer]
            empty += int(slots.sum()) * bytes_of(buffer.keys[0, 0, :1], buffer.values[0, 0, :1])
        return super().bytes() - empty

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        super().reorder(rows)
        self._retained = {layer: retained[rows] for layer, retained in self._retained.items()}
        self._empty = {layer: empty[rows] for layer, empty in self._empty.items()}

    @property
    def length(self) -> int:
        """Number of tokens so far, including evicted tokens; the next token has this position."""
        return min(self._lengths.values(), default=0)

    def kept(self, layer: int) -> Int[Tensor, "batch key_heads retained"]:
        """Return the positions of the layer's retained prompt keys, ascending; EMPTY_POSITION in empty slots."""
        return self._retained[layer]

    @property
    def mean_retained(self) -> Float[Tensor, ""]:
        """Mean number of retained prompt keys over sequences, key-value heads and layers, without empty slots."""
        counts = [(retained != EMPTY_POSITION).double().sum(-1).mean() for retained in self._retained.values()]
        return torch.stack(counts).mean()


def importance_of(policy: Policy, prompt: Prompt, position: PositionEncoding | None) -> Importance:
    """Return the eviction priority of each key after the last query of an unpruned prompt.

    With a policy S <- decay * S + gain * p, the score of key k after T tokens is decay^(T - k) times its initial score
    plus gain times the sum over q of decay^(T - 1 - q) p[q, k], as in the official code of H2O and A2SF for long
    prompts.
    """
    if isinstance(policy, OneShot):
        return policy.importance(prompt, position)
    assert isinstance(policy, Eviction), "CompressedCache refuses such a policy"
    rule = coefficients(policy)
    assert rule is not None, "CompressedCache refuses such a policy"
    decay, gain = rule
    time, key_heads = prompt.k.shape[2], prompt.k.shape[1]
    state = policy.empty_state(prompt.budgets, key_heads, time, at_least_float32(prompt.k.new_empty(0)))
    state.positions.copy_(torch.arange(time, device=state.positions.device))
    initial = policy.cast_initial_scores(prompt.k, state.positions.shape[1], prompt.layer, state.scores)
    age = torch.arange(time, 0, -1, device=prompt.k.device, dtype=state.scores.dtype)
    if initial is not None:
        state.scores += initial * decay**age
    for start in range(0, time, QUERY_CHUNK):
        end = min(start + QUERY_CHUNK, time)
        if gain * decay ** (time - end):  # skip weights that underflow
            weights = gain * decay ** (age[start:end] - 1)
            rows = attention_rows(prompt, start, end)
            state.scores += policy.reduce_over_heads((rows * weights[:, None].to(rows.dtype)).sum(3))
    return policy.eviction_priority(state, prompt.k, time - 1)


def attention_rows(
    prompt: Prompt, start: int, end: int
) -> Float[Tensor, "batch key_heads heads_per_kv_head queries time"]:
    """Return the unpruned attention of queries start, ..., end - 1, in at least float32."""
    q, k = prompt.q[:, :, start:end], prompt.k
    logits = by_group(q * q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]) @ k.unsqueeze(2).transpose(-1, -2)
    later = torch.ones(end - start, k.shape[2], dtype=torch.bool, device=k.device).triu(start + 1)
    return masked_softmax(logits, ~later)
