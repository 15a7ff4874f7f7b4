"""Simulated pruning: one masked forward pass over whole sequences, equal to token-by-token eviction."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from formerlab.cache.budget import AnyBudget, resolve_budget
from formerlab.cache.engines import simulate_eviction
from formerlab.cache.eviction import Engine, Eviction
from formerlab.cache.policies.policy import (
    LayerInputs,
    Lengths,
    Policy,
    Prompt,
    Protecting,
    State,
    by_group,
    check_configuration,
    masked_softmax,
    on_device,
    true_lengths,
)
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads

Square = Float[Tensor, "batch heads time time"]
SquareMask = Bool[Tensor, "batch heads time time"]


class SimulatedLayer(NamedTuple):
    """Attention of one simulated layer, for figures and statistics."""

    logits: Square
    probabilities: Square
    visible: SquareMask
    keys: KeyHeads

    def simulate(
        self, policy: Policy, budget: AnyBudget, state: State | None = None, layer: int = 0
    ) -> tuple[Square, SquareMask]:
        """Return the result of `simulate` with the same logits under another policy. Sequences must not be padded."""
        groups = self.logits.shape[1] // self.keys.shape[1]
        return simulate(policy, self.logits, budget, groups=groups, keys=self.keys, state=state, layer=layer)


Observer = Callable[[int, SimulatedLayer], None]
"""A function that is called with the index and the simulation of each layer."""


def simulate(
    policy: Policy,
    logits: Square,
    budget: AnyBudget,
    *,
    lengths: Lengths = None,
    groups: int = 1,
    keys: Float[Tensor, "batch key_heads time d_head"] | None = None,
    state: State | None = None,
    layer: int = 0,
) -> tuple[Square, SquareMask]:
    """Return the attention probabilities under a policy, and the mask of keys that each query sees.

    Args:
        policy: the cache policy.
        logits: causal attention logits (batch, heads, time, time); entries of later keys are ignored.
        budget: number of keys (int) or fraction of each sequence's true length (float); see `resolve_budget`.
        lengths: true lengths in a right-padded batch, default no padding. Padding is masked as key and as query.
        groups: query heads per key-value head; heads i * groups to (i + 1) * groups - 1 share key-value head i.
        keys: keys (batch, key_heads, time, d_head), for policies that need them.
        state: shared between the layers of a forward pass (SpAtten). Pass the same dict, initially empty, to every
            layer in turn; the call updates it.
        layer: index of the layer, from 0.

    Gradients flow through the probabilities only, because the choice of keys is not differentiable. For policies that
    re-index the retained keys, the logits must already contain the new positions; `Simulation` computes them.

    Raises ValueError for missing or inconsistent inputs, and UserError for an invalid budget, a one-shot policy and a
    policy with protect="prompt", which needs a `Simulation`.
    """
    check_configuration(policy, budget)
    _check_prompt(policy)
    for name, value in (("keys", keys), ("state", state)):
        if name in policy.scorer.needs and value is None:
            raise ValueError(f"{type(policy).__name__} needs {name}: pass {name}=... to simulate")
    if groups < 1 or logits.shape[1] % groups:
        raise ValueError(f"groups={groups} does not divide the {logits.shape[1]} heads of the logits")
    sequence_lengths = true_lengths(lengths, logits.shape[0], logits.shape[-1])
    budgets = [policy.layer_budget(resolve_budget(budget, length), layer) for length in sequence_lengths]
    with torch.no_grad():
        inputs = LayerInputs(by_group(logits.detach(), groups), budgets, sequence_lengths, layer, keys, state)
        self_mask = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
        by_kv_head = (policy.visible(inputs) | self_mask) & inputs.causal
        visible = by_kv_head.unsqueeze(2).expand(inputs.logits.shape).reshape(logits.shape)
    probabilities = masked_softmax(logits, visible).to(logits.dtype)
    if lengths is None:
        return probabilities, visible
    token_mask = inputs.token_mask[:, None, :, None]
    return probabilities.masked_fill(~token_mask, 0.0), visible & token_mask


def _check_prompt(policy: Policy) -> None:
    if isinstance(policy, Protecting) and policy.needs_prompt_length:
        raise UserError(f"{policy!r}: the length of the prompt is unknown; use Simulation(..., prompt=length)")


class Simulation:
    """An attention function that simulates pruning in one forward pass over whole sequences.

    Call `model(tokens, attend=Simulation(policy, budget, lengths))`. The object stores state that the layers share, so
    create a new object for every forward pass. `observe` is called with the index and the `SimulatedLayer` of each
    layer. Eviction runs in `engine` (default: the fastest). Masked attention in torch replaces the engine if
    `observe` is given, gradients are needed, or the policy re-indexes positions or does not evict step by step.
    `position` is the model's position encoding; only policies that re-index the retained keys need it. `prompt` is the
    number of prompt tokens at the start of every sequence; only policies with protect="prompt" need it.

    Raises UserError for an invalid budget, a one-shot policy, protect="prompt" without `prompt`, an unsuitable
    `position`, and in a call for a prompt that exceeds the budget. A second forward pass raises ValueError.
    """

    def __init__(
        self,
        policy: Policy,
        budget: AnyBudget,
        lengths: Lengths = None,
        observe: Observer | None = None,
        position: PositionEncoding | None = None,
        engine: Engine | None = None,
        prompt: int = 0,
    ) -> None:
        budget = check_configuration(policy, budget)
        self.policy = policy.with_prompt_length(prompt) if prompt and isinstance(policy, Protecting) else policy
        self._layer_policy = self.policy.layer_policy
        _check_prompt(self.policy)
        self.budget = budget
        self.lengths = lengths
        self.observe = observe
        self.position = policy.check_position(position)
        self.engine = engine
        self._state: State = {}
        self._cache_sizes: dict[int, Float[Tensor, " batch"]] = {}

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return softmax(q k^T / sqrt(d_head)) v over the keys that each query sees under the policy."""
        if layer in self._cache_sizes:
            raise ValueError(f"layer {layer} was simulated already; create a new Simulation for every forward pass")
        lengths = true_lengths(self.lengths, q.shape[0], q.shape[2])
        budgets = [self.policy.layer_budget(resolve_budget(self.budget, length), layer) for length in lengths]
        prompt = Prompt(q, k, v, budgets, lengths, layer)
        if isinstance(self.policy, Protecting) and self.policy.protect is not None:
            self.policy.check_budget(min(prompt.budgets))
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        policy = self._layer_policy
        stepwise = isinstance(policy, Eviction) and policy.is_online and not policy.reindexes_positions
        run = self._run_engine if stepwise and self.observe is None and not gradient else self._run_with_mask
        out, self._cache_sizes[layer] = run(prompt)
        if self.lengths is None:
            return out
        padding = torch.arange(q.shape[2], device=q.device) >= on_device(lengths, q.device)[:, None]
        return out.masked_fill(padding[:, None, :, None], 0.0)

    def _run_engine(self, prompt: Prompt) -> tuple[Heads, Float[Tensor, " batch"]]:
        policy = self._layer_policy
        assert isinstance(policy, Eviction)
        q, k, v, lengths = prompt.q, prompt.k, prompt.v, prompt.lengths
        if all(policy.capacity(count) >= length for count, length in zip(prompt.budgets, lengths, strict=True)):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
            return out, q.new_ones(len(lengths), dtype=torch.float64)
        out, last_query, _ = simulate_eviction(policy, prompt, self.engine)
        lengths_tensor = on_device(lengths, q.device)[:, None, None]
        retained = (last_query >= lengths_tensor) & (torch.arange(q.shape[2], device=q.device) < lengths_tensor)
        return out, retained.double().sum(-1).mean(1) / lengths_tensor[:, 0, 0]

    def _run_with_mask(self, prompt: Prompt) -> tuple[Heads, Float[Tensor, " batch"]]:
        q, k, v, budgets, lengths = prompt.q, prompt.k, prompt.v, prompt.budgets, prompt.lengths
        groups, layer = q.shape[1] // k.shape[1], prompt.layer
        queries = by_group(q * q.shape[-1] ** -0.5, groups)
        logits = queries @ k.unsqueeze(2).transpose(-1, -2)
        if self.policy.reindexes_positions and self.position is not None:
            logits = self._reindex_logits(logits, queries, k, budgets, self.position)
        flat = logits.flatten(1, 2)
        probabilities, visible = simulate(
            self.policy, flat, self.budget, lengths=lengths, groups=groups, keys=k, state=self._state, layer=layer
        )
        if self.observe is not None:
            self.observe(layer, SimulatedLayer(flat, probabilities, visible, k))
        out: Tensor = by_group(probabilities, groups) @ v.unsqueeze(2)
        lengths_tensor = on_device(lengths, q.device)
        last_counts = visible[torch.arange(len(lengths), device=q.device), :, lengths_tensor - 1].sum(-1)
        capacities = [min(self.policy.capacity(count), length) for count, length in zip(budgets, lengths, strict=True)]
        sees_all = (last_counts == lengths_tensor[:, None]).all(1, keepdim=True)
        retained = torch.where(sees_all, on_device(capacities, q.device)[:, None], last_counts - 1)
        return out.flatten(1, 2), retained.double().mean(1) / lengths_tensor

    def _reindex_logits(
        self, logits: Tensor, queries: Tensor, keys: KeyHeads, budgets: list[int], position: PositionEncoding
    ) -> Float[Tensor, "batch key_heads heads_per_kv_head time time"]:
        """Return the logits with the sink of each sequence moved directly before the sliding window.

        At query q with a budget of b keys, e = max(0, q - b) positions are evicted between sink and window. Only
        relative positions matter, so the keys of the sink are rotated by e more positions. `queries` are already
        multiplied by d_head^-0.5.
        """
        assert isinstance(self.policy, Eviction)
        sink, time = [self.policy.protected(count)[0] for count in budgets], logits.shape[-1]
        first, budget = on_device(sink, logits.device), on_device(budgets, logits.device)
        evicted = (torch.arange(time, device=logits.device) - budget[:, None]).clamp(min=0)
        steps = max(time - min(budgets), 1)
        logits = logits.clone()
        for key in range(min(max(sink), time)):
            rotated = position.rotate(keys[:, :, key : key + 1].expand(-1, -1, steps, -1), 0)
            index = evicted[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
            column = (queries * rotated.gather(2, index).unsqueeze(2)).sum(-1)
            logits[..., key] = torch.where((key < first)[:, None, None, None], column, logits[..., key])
        return logits

    @property
    def realised_budget(self) -> Float[Tensor, " batch"]:
        """Measured cache size: retained keys after the last eviction of each sequence, as a fraction of its length.

        The value is a mean over layers and heads; it is 1 for `Full`.
        """
        return torch.stack(list(self._cache_sizes.values())).mean(0)
