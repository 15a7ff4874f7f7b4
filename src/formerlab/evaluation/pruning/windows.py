"""The configurations that a pruning study compares (policies under budgets), and the windows that it reads."""

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
    """Entries (int) or a share of each sequence's own length (float)."""

    def attend(self, lengths: Int[Tensor, " batch"], position: PositionEncoding | None = None) -> Simulation:
        """Return the attention of one batch whose rows have these true lengths, given the model's position encoding."""
        return Simulation(self.policy, self.budget, lengths, position=position)

    def cells(self) -> Row:
        """Return the cells of policy, alpha, recent and budget.

        A policy is named by its kind and by what else differs from its defaults, as in `h2o variant=local_statistics`;
        alpha and recent have columns of their own, empty where a policy has no such field.
        """
        values = self.policy.model_dump(mode="json")
        changed = self.policy.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "alpha", "recent"})
        name = " ".join([values["kind"], *(f"{key}={value}" for key, value in changed.items())])
        return name, values.get("alpha"), values.get("recent"), self.budget

    def alone(self, settings: Measurement) -> tuple[Measurement, dict[str, Any], Budget]:
        """Return the settings that decide this configuration's rows; the other configurations do not."""
        others = dict.fromkeys({"alphas", "one_shot"} & type(settings).model_fields.keys(), ())
        return settings.model_copy(update={"policies": (self.policy,), **others}), self.policy.to_dict(), self.budget


@dataclass(frozen=True)
class Windows:
    """Windows of a stream, as one model reads them."""

    model: DecoderModel
    stream: Stream
    context: int
    """Tokens predicted in a window."""
    numbers: Sequence[int]
    batch: int = 16
    """Windows read at once."""
    progress: Progress | None = None
    """Counts windows."""

    def losses(self, attend_for: AttendFor) -> list[WindowLoss]:
        """Return the loss of each window."""
        chosen: dict[str, Any] = {"batch": self.batch, "windows": self.numbers, "progress": self.progress}
        return window_losses(self.model, self.stream, self.context, attend_for=attend_for, **chosen)

    def batches(self) -> Iterator[tuple[Sequence[int], Int[Tensor, "batch time_plus_1"]]]:
        """Yield the numbers and the tokens of some windows at a time."""
        for numbers, tokens in window_batches(self.stream, self.context, self.numbers, self.batch):
            yield numbers, tokens.to(self.model.embedding.device)
            if self.progress is not None:
                self.progress.advance(len(numbers))

    def observed(self, observe: Observer) -> Iterator[Sequence[int]]:
        """Read without pruning, and let `observe` see every layer; yield the numbers of each batch behind it."""
        for numbers, tokens in self.batches():
            with evaluating(self.model):
                self.model(tokens[:, :-1], attend=Simulation(Full(), 1.0, observe=observe))
            yield numbers
