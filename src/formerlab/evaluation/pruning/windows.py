"""Configurations of a pruning study (a policy under a budget), and windows of a token stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from formerlab.cache import Budget, Full, Simulation
from formerlab.cache.policies.policy import Policy
from formerlab.cache.simulation import Observer
from formerlab.evaluation.measurement import Measurement, Row
from formerlab.layers.position import PositionEncoding
from formerlab.models.decoder import DecoderModel
from formerlab.progress import Progress
from formerlab.tasks.scoring import AttendFor, evaluating
from formerlab.tasks.window_losses import Stream, WindowLoss, window_batches, window_losses


class Configuration(NamedTuple):
    """A policy under a budget."""

    policy: Policy
    budget: Budget
    """Number of keys (int) or fraction of each sequence's length (float)."""

    def attend(self, lengths: Int[Tensor, " batch"], position: PositionEncoding | None = None) -> Simulation:
        """Return the attention function for a batch of sequences with these true lengths."""
        return Simulation(self.policy, self.budget, lengths, position=position)

    def cells(self) -> Row:
        """Return the values of the columns policy, alpha, recent and budget.

        `alpha` is None if the scoring policy has no such field. `recent` is None if the scoring policy has no such
        field, or if the field is 0 and the policy is neither Decay nor H2O.
        """
        values = self.policy.scorer.model_dump(mode="json")
        return policy_name(self.policy), values.get("alpha"), values.get("recent"), self.budget

    def row_key(self, settings: Measurement) -> tuple[Measurement, dict[str, Any], Budget]:
        """Return the settings, policy and budget that identify the stored rows of this configuration."""
        update: dict[str, Any] = dict.fromkeys(
            {"alphas", "one_shot", "every_token"} & type(settings).model_fields.keys(), ()
        )
        update["policies"] = (self.policy,)
        return settings.model_copy(update=update), self.policy.to_dict(), self.budget


def policy_name(policy: Policy) -> str:
    """Return the kind and the non-default fields except alpha and recent, such as `h2o variant=local_statistics`.

    The name of a policy with an inner policy has the form `pyramid(snapkv window=32) layers=30`.
    """
    changed = policy.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "alpha", "recent", "policy"})
    inner = getattr(policy, "policy", None)
    kind = policy.to_dict()["kind"] + (f"({policy_name(inner)})" if isinstance(inner, Policy) else "")
    return " ".join([kind, *(f"{key}={value}" for key, value in changed.items())])


@dataclass(frozen=True)
class Windows:
    """Windows of a token stream for one model."""

    model: DecoderModel
    stream: Stream
    context: int
    """Number of predicted tokens per window."""
    indices: Sequence[int]
    """Indices of the windows in the stream."""
    batch: int = 16
    """Number of windows per forward pass."""
    progress: Progress | None = None
    """Progress bar that counts windows."""

    def losses(self, attend_for: AttendFor) -> list[WindowLoss]:
        options: dict[str, Any] = {"batch": self.batch, "windows": self.indices, "progress": self.progress}
        return window_losses(self.model, self.stream, self.context, attend_for=attend_for, **options)

    def batches(self) -> Iterator[tuple[Sequence[int], Int[Tensor, "batch time_plus_1"]]]:
        """Yield the indices and the tokens of each batch of windows."""
        for indices, tokens in window_batches(self.stream, self.context, self.indices, self.batch):
            yield indices, tokens.to(self.model.embedding.device)
            if self.progress is not None:
                self.progress.advance(len(indices))

    def observe_layers(self, observe: Observer) -> Iterator[Sequence[int]]:
        """Run unpruned forward passes, call `observe(layer, attention)` for every layer, and yield window indices."""
        for indices, tokens in self.batches():
            with evaluating(self.model):
                self.model(tokens[:, :-1], attend=Simulation(Full(), 1.0, observe=observe))
            yield indices
