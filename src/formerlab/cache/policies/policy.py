"""The interface of a cache policy, and everything that it may look at."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from formerlab.cache.budget import AnyBudget, plain_budget, resolve_budget
from formerlab.errors import UserError
from formerlab.layers.position import PositionEncoding
from formerlab.layers.shapes import Heads, KeyHeads
from formerlab.spec import Spec

State = dict[str, Tensor]
Lengths = Int[Tensor, " batch"] | Sequence[int] | None
"""The true lengths in a right-padded batch; None means that nothing is padding."""
Logits = Float[Tensor, "batch key_heads groups time time"]
Importance = Float[Tensor, "batch head_groups time"]


@dataclass(frozen=True)
class Layer:
    """One attention layer over a right-padded batch, before pruning.

    Heads stand as key heads x groups: the query heads of a group share a key head, and with it the kept keys.
    """

    logits: Logits
    """Attention logits q k^T / sqrt(d_head); those of later keys are never read."""
    budgets: Sequence[int]
    """Budget of each sequence, in tokens held between steps."""
    lengths: Sequence[int]
    """True length of each sequence; what comes after is padding."""
    index: int = 0
    """Which layer of the model it is, counted from 0."""
    keys: Float[Tensor, "batch key_heads time d_head"] | None = None
    state: State | None = None
    """What passes from layer to layer: one dict for all layers of a forward pass, empty before the first."""

    @property
    def budget_tensor(self) -> Int[Tensor, " batch"]:
        """The budgets, shaped to broadcast."""
        return on_device(self.budgets, self.logits.device)

    @property
    def causal(self) -> Bool[Tensor, "time time"]:
        """Keys no later than the query."""
        time = self.logits.shape[-1]
        return torch.ones(time, time, dtype=torch.bool, device=self.logits.device).tril()

    @property
    def real(self) -> Bool[Tensor, "batch time"]:
        """Positions that are not padding."""
        device = self.logits.device
        return torch.arange(self.logits.shape[-1], device=device) < on_device(self.lengths, device)[:, None]

    def attention(self, visible: Bool[Tensor, "*#shape time time"]) -> Float[Tensor, "batch key_heads time time"]:
        """Return the probabilities over the visible keys, summed over each group; queries of padding give zeros.

        Sum and mean over a group rank keys alike; the sum is A2SF's choice for shared key heads.
        """
        probabilities = masked_softmax(self.logits, visible.unsqueeze(-3)).sum(2)
        return probabilities.masked_fill(~self.real[:, None, :, None], 0.0)


@dataclass(frozen=True)
class Prompt:
    """Whole right-padded sequences as one layer meets them."""

    q: Heads
    k: KeyHeads
    v: KeyHeads
    budgets: list[int]
    """Budget of each sequence."""
    lengths: list[int]
    """True length of each sequence."""
    layer: int = 0

    def of(self, rows: slice) -> "Prompt":
        """Return some of the sequences."""
        q, k, v = self.q[rows], self.k[rows], self.v[rows]
        return Prompt(q, k, v, self.budgets[rows], self.lengths[rows], self.layer)


class UnknownRotation(PositionEncoding):
    """The positions of a model that rotates queries and keys in a way that is not known."""

    def rotate(self, x: Heads, start: int) -> Heads:
        """Refuse."""
        raise NotImplementedError("the rotation is not known")


class Policy(Spec, ABC):
    """Which keys each query may see under a budget. Every query sees itself, whatever the policy says."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Inputs of `simulate` without which the policy cannot decide: keys, state."""

    @property
    def is_online(self) -> bool:
        """Whether each step needs only what a cache still holds, so that it can really evict."""
        return False

    @property
    def reindexes_positions(self) -> bool:
        """Whether the kept keys are numbered anew, so that they stand elsewhere than in the text."""
        return False

    def check_position(self, position: PositionEncoding | None) -> PositionEncoding | None:
        """Return the position encoding; raise UserError where the policy needs it and this cannot follow."""
        if not self.reindexes_positions:
            return position
        if position is None:
            raise UserError(f"{self!r} numbers the kept keys anew; pass position=model.position")
        if isinstance(position, UnknownRotation):
            raise UserError(
                f"{self!r} numbers keys anew, but how this model rotates them is not known; use positions='kept'"
            )
        if type(position).embed is not PositionEncoding.embed:
            raise UserError(
                f"{self!r} numbers keys anew, but this model adds positions to tokens; use positions='kept'"
            )
        return position

    def capacity(self, budget: int) -> int:
        """Return the keys that may stay between steps under a budget of `budget`."""
        return budget

    @abstractmethod
    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        """Return for every query (third axis) the keys that it may see; later keys and padding do not matter."""


class OneShot(Policy):
    """A policy that chooses once, from the queries of a whole prompt, and has no rule for single steps."""

    @abstractmethod
    def importance(self, prompt: Prompt, position: PositionEncoding | None) -> Importance:
        """Return the score of each key of a prompt, whose sequences all have the same length and budget."""

    @abstractmethod
    def protected(self, budget: int) -> tuple[int, int]:
        """Return how many first and how many last positions are kept in any case; together at most `budget`."""

    def visible(self, layer: Layer) -> Bool[Tensor, "batch key_heads time time"]:
        raise NotImplementedError("it chooses once")


def check_configuration(policy: object, budget: AnyBudget, *, stepwise: bool = True) -> Any:
    """Return the budget as a number of Python's own, which may have come from numpy or torch.

    Raises UserError for a wrong type, for a policy without a rule for single steps, and for an impossible budget.
    """
    if not isinstance(policy, Policy):
        name = policy.__name__ if isinstance(policy, type) else "Decay"
        raise UserError(f"policy={policy!r}: give a policy of formerlab.cache itself, such as {name}()")
    if stepwise and isinstance(policy, OneShot):
        raise UserError(f"{policy!r} chooses once, after a whole prompt; run it as a CompressedCache")
    resolve_budget(budget, 1)
    return plain_budget(budget)


def by_group(
    x: Float[Tensor, "batch heads time channels"], groups: int
) -> Float[Tensor, "batch key_heads groups time channels"]:
    """Split the query heads into key heads x groups: heads i groups, ..., (i + 1) groups - 1 share key head i."""
    batch, heads, time, channels = x.shape
    return x.reshape(batch, heads // groups, groups, time, channels)


def precise(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return numbers in single precision, or in their own if that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def masked_softmax(
    logits: Float[Tensor, "*shape keys"], visible: Bool[Tensor, "*#shape keys"]
) -> Float[Tensor, "*shape keys"]:
    """Return softmax over the visible keys alone, in single precision or the logits' own if that is higher."""
    return precise(logits).masked_fill(~visible, -torch.inf).softmax(-1)


def largest(scores: Float[Tensor, "*shape time"], count: Int[Tensor, "*#shape"]) -> Bool[Tensor, "*shape time"]:
    """Mark the `count` largest scores of each row; of equal scores the older key loses."""
    order = scores.flip(-1).argsort(dim=-1, descending=True, stable=True)
    chosen = torch.arange(scores.shape[-1], device=scores.device) < count.unsqueeze(-1)
    marked = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, chosen.expand_as(order).contiguous())
    return marked.flip(-1)


def places(marked: Bool[Tensor, "*shape time"], count: int) -> Int[Tensor, "*shape count"]:
    """Return where the marks stand, ascending, given that every row has `count`; a GPU need not be waited for."""
    return marked.byte().argsort(dim=-1, descending=True, stable=True)[..., :count]


def true_lengths(lengths: Lengths, batch: int, time: int) -> list[int]:
    """Return the true lengths in a right-padded batch; None means that nothing is padding.

    Lengths in a tensor should lie on the CPU: a GPU would be waited for.
    """
    if lengths is None:
        return [time] * batch
    true: list[int] = torch.as_tensor(lengths).tolist()
    if len(true) != batch or not 1 <= min(true) <= max(true) <= time:
        raise ValueError(f"lengths={true}: give {batch} lengths from 1 to {time}")
    return true


def on_device(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " batch"]:
    """Return numbers, one per sequence, as a tensor on a device, for which a GPU need not be waited for."""
    if len(set(numbers)) == 1:
        return torch.full((len(numbers),), numbers[0], device=device)
    return torch.tensor(numbers).to(device, non_blocking=True)
