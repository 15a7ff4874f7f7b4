"""The interface of cache policies, and their inputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import not_
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, PrivateAttr
from torch import Tensor

from formerlab.cache.budget import AnyBudget, floor_fraction, plain_budget, resolve_budget
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads, Start
from formerlab.spec import AnyCount, Spec

P = TypeVar("P", bound="Protecting")
State = dict[str, Tensor]
Lengths = Int[Tensor, " batch"] | Sequence[int] | None
"""The true lengths of the sequences in a right-padded batch; None means no padding."""
Logits = Float[Tensor, "batch key_heads heads_per_kv_head time time"]
Importance = Float[Tensor, "batch head_groups time"]


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a policy in simulation: attention logits and keys of one layer for a right-padded batch."""

    logits: Logits
    """Attention logits q k^T / sqrt(d_head); logits of later keys are never read."""
    budgets: Sequence[int]
    """Budget of each sequence in keys retained between steps."""
    lengths: Sequence[int]
    """True length of each sequence, without padding."""
    index: int = 0
    """Index of the layer in the model, from 0."""
    keys: Float[Tensor, "batch key_heads time d_head"] | None = None
    state: State | None = None
    """State shared between layers: one dict for all layers of a forward pass, empty before the first layer."""

    @property
    def budget_tensor(self) -> Int[Tensor, " batch"]:
        """The budgets as a tensor on the device of the logits."""
        return on_device(self.budgets, self.logits.device)

    @property
    def causal(self) -> Bool[Tensor, "time time"]:
        """The causal mask (query, key)."""
        time = self.logits.shape[-1]
        return torch.ones(time, time, dtype=torch.bool, device=self.logits.device).tril()

    @property
    def token_mask(self) -> Bool[Tensor, "batch time"]:
        """Mask of the tokens, False at padding."""
        device = self.logits.device
        return torch.arange(self.logits.shape[-1], device=device) < on_device(self.lengths, device)[:, None]

    def attention(self, visible: Bool[Tensor, "*#shape time time"]) -> Float[Tensor, "batch key_heads time time"]:
        """Return the probabilities over the visible keys, summed over the query heads of each key-value head.

        The probabilities are zero for queries of padding. A2SF also uses the sum.
        """
        probabilities = masked_softmax(self.logits, visible.unsqueeze(-3)).sum(2)
        return probabilities.masked_fill(~self.token_mask[:, None, :, None], 0.0)


@dataclass(frozen=True)
class Prompt:
    """Queries, keys and values of one layer for a batch of right-padded sequences."""

    q: Heads
    k: KeyHeads
    v: KeyHeads
    budgets: list[int]
    """Budget of each sequence."""
    lengths: list[int]
    """True length of each sequence."""
    layer: int = 0

    def select(self, rows: slice) -> "Prompt":
        """Return a slice of the sequences."""
        q, k, v = self.q[rows], self.k[rows], self.v[rows]
        return Prompt(q, k, v, self.budgets[rows], self.lengths[rows], self.layer)


class UnknownRotation(PositionEncoding):
    """The position encoding of a model whose rotation of queries and keys is unknown."""

    def rotate(self, x: Heads, start: Start) -> Heads:
        raise NotImplementedError("the rotation is not known")


class Policy(Spec, ABC):
    """Base of the policies that choose the keys that each query may see. Every query sees its own key."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Inputs that `simulate` must pass to the policy: keys, state."""

    @property
    def is_online(self) -> bool:
        """Whether each step needs only the retained keys, so that a cache can evict. For `Pyramid`, which divides the
        budget among layers, ask its `layer_policy`.
        """
        return False

    @property
    def reindexes_positions(self) -> bool:
        """Whether retained keys are renumbered by their order in the cache."""
        return False

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding | None:
        """Return the position encoding; raise UserError if the policy needs another encoding."""
        if not self.reindexes_positions:
            return position
        if position is None:
            raise UserError(f"{self!r} re-indexes the retained keys; pass position=model.position")
        if isinstance(position, UnknownRotation):
            raise UserError(
                f"{self!r} re-indexes keys, but the rotation of this model is unknown; use positions='kept'"
            )
        if type(position).embed is not PositionEncoding.embed:
            raise UserError(f"{self!r} re-indexes keys, but this model adds positions to tokens; use positions='kept'")
        return position

    @property
    def scorer(self) -> "Policy":
        """The policy that scores the keys: this policy, or the scorer inside `HeadAdaptive` and `Pyramid`."""
        return self

    @property
    def layer_policy(self) -> "Policy":
        """The policy that runs in each layer with the budget `layer_budget`."""
        return self

    @property
    def is_ragged(self) -> bool:
        """Whether the heads of a layer retain different numbers of keys."""
        return False

    def layer_budget(self, budget: int, layer: int) -> int:
        """Return the budget of one layer, given the mean budget."""
        return budget

    def capacity(self, budget: int) -> int:
        """Return the number of keys retained between steps under a budget."""
        return budget

    def check_budget(self, budget: int) -> None:
        """Raise UserError if a count of keys is too small for the protected tokens."""

    def select(self, importance: Importance, count: int) -> Bool[Tensor, "batch head_groups time"]:
        """Mark the keys that are retained when a prompt is compressed, `count` in each head group."""
        return largest(importance, torch.full(importance.shape[:-1], count, device=importance.device))

    @abstractmethod
    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        """Return the mask of keys (last axis) that each query may see; later keys and padding are ignored."""


class Protecting(Policy):
    """Base of the policies that can protect the first and the most recent tokens from eviction.

    The protected tokens count towards the budget. A budget in keys below `sink` raises UserError. If a fraction gives a
    short sequence fewer keys than `sink`, only its first tokens are retained.
    """

    sink: AnyCount = Field(default=0, exclude_if=not_)
    """Number of first tokens that are never evicted."""
    recent: float = Field(default=0.0, ge=0.0, le=1.0, exclude_if=not_)
    """Fraction of the budget reserved for the most recent tokens, rounded down; at most the budget minus `sink`."""
    protect: Literal["prompt"] | None = Field(default=None, exclude_if=not_)
    """prompt: never evict the tokens of the first call of a cache, so that only generated tokens are evicted. `recent`
    is then a fraction of the budget without the prompt."""
    _prompt: int = PrivateAttr(0)

    def protected(self, budget: int) -> tuple[int, int]:
        """Return the numbers of first and last positions that are not evicted; their sum is at most `budget`."""
        first = min(max(self.sink, self._prompt), budget)
        return first, min(floor_fraction(self.recent, max(0, budget - self._prompt)), budget - first)

    def check_budget(self, budget: int) -> None:
        first = max(self.sink, self._prompt)
        if budget < first:
            tokens = f"a prompt of {first} tokens" if self._prompt == first else f"the first {first} tokens (sink)"
            raise UserError(
                f"budget {budget}: {type(self).__name__} retains {tokens}; give a count of at least {first}"
            )

    def with_prompt_length(self: P, length: int) -> P:
        """Return a copy that protects a prompt of `length` tokens; without `protect`, return the policy itself."""
        if self.protect is None:
            return self
        policy = self.model_copy()
        policy._prompt = length
        return policy

    @property
    def needs_prompt_length(self) -> bool:
        """Whether the policy protects a prompt of unknown length."""
        return self.protect is not None and not self._prompt


class OneShot(Protecting):
    """Base of the policies that compress once after a whole prompt and have no rule for single steps."""

    @abstractmethod
    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        """Return the score of each key of a prompt; all sequences have the same length and budget."""

    def visible(self, layer: LayerInputs) -> Bool[Tensor, "batch key_heads time time"]:
        raise NotImplementedError("one-shot policies have no rule for single steps")


def check_configuration(policy: object, budget: AnyBudget, *, stepwise: bool = True) -> Any:
    """Check policy and budget; return the budget as a Python number.

    Raises UserError for a wrong type, for a one-shot policy if `stepwise`, for an invalid budget, and for a count of
    keys that is too small for the protected tokens.
    """
    if not isinstance(policy, Policy):
        name = policy.__name__ if isinstance(policy, type) else "Decay"
        raise UserError(f"policy={policy!r}: give an instance of a policy of formerlab.cache, such as {name}()")
    if stepwise and isinstance(policy.scorer, OneShot):
        raise UserError(f"{policy!r} compresses only once, after the prompt; run it as a CompressedCache")
    resolve_budget(budget, 1)
    budget = plain_budget(budget)
    if isinstance(budget, int):
        policy.check_budget(budget)
    return budget


def by_group(
    x: Float[Tensor, "batch heads time channels"], heads_per_kv_head: int
) -> Float[Tensor, "batch key_heads heads_per_kv_head time channels"]:
    """Split the query heads by key-value head; adjacent query heads share a key-value head."""
    batch, heads, time, channels = x.shape
    return x.reshape(batch, heads // heads_per_kv_head, heads_per_kv_head, time, channels)


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Cast to at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def masked_softmax(
    logits: Float[Tensor, "*shape keys"], visible: Bool[Tensor, "*#shape keys"]
) -> Float[Tensor, "*shape keys"]:
    """Return the softmax over the visible keys, in at least float32."""
    return at_least_float32(logits).masked_fill(~visible, -torch.inf).softmax(-1)


def largest(scores: Float[Tensor, "*shape time"], count: Int[Tensor, "*#shape"]) -> Bool[Tensor, "*shape time"]:
    """Mark the `count` largest scores of each row; ties prefer the newer key."""
    order = scores.flip(-1).argsort(dim=-1, descending=True, stable=True)
    selected = torch.arange(scores.shape[-1], device=scores.device) < count.unsqueeze(-1)
    marked = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, selected.expand_as(order).contiguous())
    return marked.flip(-1)


def marked_indices(marked: Bool[Tensor, "*shape time"], count: int) -> Int[Tensor, "*shape count"]:
    """Return the indices of the `count` marked elements of each row in ascending order, without a synchronisation."""
    return marked.byte().argsort(dim=-1, descending=True, stable=True)[..., :count]


def true_lengths(lengths: Lengths, batch: int, time: int) -> list[int]:
    """Return the true lengths in a right-padded batch. Raises ValueError for lengths outside 1 to `time`."""
    if lengths is None:
        return [time] * batch
    sequence_lengths: list[int] = torch.as_tensor(lengths).tolist()
    if len(sequence_lengths) != batch or not 1 <= min(sequence_lengths) <= max(sequence_lengths) <= time:
        raise ValueError(f"lengths={sequence_lengths}: give {batch} lengths from 1 to {time}")
    return sequence_lengths


def on_device(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " batch"]:
    """Return numbers, one per sequence, as a tensor on a device, without a synchronisation."""
    if len(set(numbers)) == 1:
        return torch.full((len(numbers),), numbers[0], device=device)
    return torch.tensor(numbers).to(device, non_blocking=True)
