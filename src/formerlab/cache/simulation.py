"""Pruning by masks: one forward pass over whole sequences that gives what token-by-token eviction would give."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from formerlab.cache.budget import entries
from formerlab.cache.policy import Layer, Policy, State, by_group, masked_softmax, true_lengths
from formerlab.layers.attention import Heads, KeyHeads

Square = Float[Tensor, "batch heads time time"]
SquareMask = Bool[Tensor, "batch heads time time"]
Observer = Callable[[int, Square, Square, SquareMask], None]


def simulate(
    policy: Policy,
    logits: Square,
    budget: int | float,
    *,
    lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
    groups: int = 1,
    keys: Float[Tensor, "batch key_heads time d_head"] | None = None,
    values: Float[Tensor, "batch key_heads time d_head"] | None = None,
    state: State | None = None,
) -> tuple[Square, SquareMask]:
    """Return the attention probabilities under a policy, and what each query could see.

    `logits` are causal attention logits; entries of later keys are ignored. `budget` is a count of entries (int) or a
    ratio of each sequence's true length (float), see `entries`. `lengths` are the true lengths in a right-padded batch
    (default: no padding); padding is neither seen nor counted, and its rows are zero. `groups` is the number of query
    heads per key head: heads i groups, ..., (i + 1) groups - 1 share key head i, their scores are summed and they keep
    the same keys. `state` carries what passes from layer to layer (SpAtten): give the same dict, empty at first, to
    every layer in turn; it is written to.

    The choice of keys passes no gradient; the probabilities do.

    Raises ValueError where an input does not fit or the policy lacks one, UserError for an impossible budget.
    """
    given = {"keys": keys, "values": values, "state": state}
    for name in policy.needs:
        if given[name] is None:
            raise ValueError(f"{type(policy).__name__} needs {name}: pass {name}=... to simulate")
    if groups < 1 or logits.shape[1] % groups:
        raise ValueError(f"groups={groups} does not divide the {logits.shape[1]} heads of the logits")
    true = true_lengths(lengths, logits.shape[0], logits.shape[-1], logits.device)
    counts = torch.tensor([entries(budget, length) for length in true.tolist()], device=logits.device)
    with torch.no_grad():
        layer = Layer(by_group(logits.detach(), groups), counts, true, keys=keys, values=values, state=state)
        itself = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
        by_key_head = (policy.visible(layer) | itself) & layer.causal
        visible = by_key_head.unsqueeze(2).expand(layer.logits.shape).reshape(logits.shape)
    probabilities = masked_softmax(logits, visible).to(logits.dtype)
    if lengths is None:
        return probabilities, visible
    real = layer.real[:, None, :, None]
    return probabilities.masked_fill(~real, 0.0), visible & real


class Simulation:
    """An `attend` for one forward pass of a model over whole sequences, pruned by simulation.

    `model(tokens, attend=Simulation(policy, budget, lengths))`. Scores start anew in every layer; what a policy passes
    from layer to layer lives in this object, so make a new one for every forward pass. `observe(layer, logits,
    probabilities, visible)` is called in every layer, for figures and measures.
    """

    def __init__(
        self,
        policy: Policy,
        budget: int | float,
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        observe: Observer | None = None,
    ) -> None:
        entries(budget, 1)  # refuse an impossible budget here
        self.policy = policy
        self.budget = budget
        self.lengths = lengths
        self.observe = observe
        self._state: State = {}
        self._realised: dict[int, Float[Tensor, " batch"]] = {}

    def __call__(self, layer: int, q: Heads, k: KeyHeads, v: KeyHeads) -> Heads:
        """Return softmax(q k^T / sqrt(d_head)) v over the keys that the policy lets each query see."""
        if layer in self._realised:
            raise ValueError(f"layer {layer} was simulated before: make a new Simulation for every forward pass")
        groups = q.shape[1] // k.shape[1]
        scaled = q * q.shape[-1] ** -0.5
        logits = (by_group(scaled, groups) @ k.unsqueeze(2).transpose(-1, -2)).flatten(1, 2)
        probabilities, visible = simulate(
            self.policy, logits, self.budget, lengths=self.lengths, groups=groups, keys=k, values=v, state=self._state
        )
        self._realised[layer] = _realised(visible, true_lengths(self.lengths, q.shape[0], q.shape[2], q.device))
        if self.observe is not None:
            self.observe(layer, logits, probabilities, visible)
        out: Tensor = by_group(probabilities, groups) @ v.unsqueeze(2)
        return out.flatten(1, 2)

    @property
    def realised_budget(self) -> Float[Tensor, " batch"]:
        """Entries that each sequence's cache holds at its end, over its length; mean over layers and heads.

        Counted from what the last query saw besides itself. Where that is everything, nothing was evicted and the whole
        sequence is held, so that Full counts 1.
        """
        return torch.stack(list(self._realised.values())).mean(0)


def _realised(visible: SquareMask, lengths: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    rows = torch.arange(len(lengths), device=lengths.device)
    last = visible[rows, :, lengths - 1].sum(-1)
    held = torch.where(last == lengths[:, None], last, last - 1)
    return held.double().mean(1) / lengths
