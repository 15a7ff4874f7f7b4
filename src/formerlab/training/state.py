"""The state of a run in progress, and the optimizer's steps, none of which is taken once a number is not finite."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from formerlab.training import processes

Row = list[float | int | str]

COUNTS = ("step", "training_time_s", "wall_time_s", "started", "rows", "kept", "kernels")


@dataclass
class State:
    """All that changes while a run trains, and all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Finished optimizer steps."""
    training_time_s: float = 0.0
    """Time inside optimizer steps, over all starts of the run."""
    wall_time_s: float = 0.0
    """Time that processes spent on the run until it was last saved, their starts included, over all its starts."""
    started: str = ""
    """When the run started for the first time, ISO 8601, UTC."""
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"train": [], "timing": [], "eval": [], "depth": []})
    kept: dict[str, Any] = field(default_factory=dict)
    """What the task keeps from step to step beside the model, such as averages of weights; empty for most."""

    kernels: list[str] = field(default_factory=list)
    """Paths of kernels on which the steps were computed, one after the other; a resume may have changed it."""

    def dump(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, content: dict[str, Any]) -> None:
        """Take over the content of a checkpoint."""
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        for name in COUNTS:
            setattr(self, name, copy.deepcopy(content[name]))
        for held in self.optimizer.state.values():  # the content is a mapped file, which the next save replaces
            held.update({name: value.clone() for name, value in held.items() if value.device.type == "cpu"})


class Outcome(NamedTuple):
    """What is known of the steps until now."""

    loss: float
    """Mean loss of the last one, nats."""
    norm: float
    """Norm of its gradient before clipping."""
    missed: int
    """Steps that were not taken: the first whose loss or gradient was not finite, and all after it."""
    beside: tuple[float, ...] = ()
    """What the task logs beside the loss."""


class Updates:
    """Takes the optimizer's steps from gradients, clipped to norm `clip` (0: as they are).

    Whether a step may be taken is known on the device alone. A CPU reads it at once. To read it from another device
    would stop this process until that has done all that it was asked for, so there the optimizer is told to decide, and
    what it decided is read when somebody asks: from the first bad step on it takes none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, clip: float, device: torch.device) -> None:
        self.optimizer, self.clip = optimizer, clip
        self.waits = waiting_is_free(device)
        self._outcome = torch.zeros(3, device=device)

    def take(self, losses: Tensor) -> None:
        """Take a step whose mean loss is the first of `losses`, and drop its gradients."""
        loss = losses[0]
        weights = (weight for group in self.optimizer.param_groups for weight in group["params"])
        moving = [weight for weight in weights if weight.grad is not None]
        norm = nn.utils.get_total_norm([weight.grad for weight in moving])
        own, missed = processes.whole(norm).to(loss), self._outcome[2]
        if self.waits:
            numbers = torch.stack((loss, own)).tolist()
            takes = all(map(math.isfinite, numbers))
            clips = takes and numbers[1] > self.clip
            missed = missed + (not takes)
        else:
            takes = clips = True
            bad = ~(loss.isfinite() & own.isfinite()) | (missed > 0)
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # where it is 1 nothing changes
            missed = missed + bad
        if self.clip and clips:
            nn.utils.clip_grads_with_norm_(moving, self.clip, norm)
        if takes:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._outcome = torch.cat((torch.stack((loss, own, missed)), losses[1:]))

    def read(self) -> Outcome:
        """Wait until the device has done every step, and return how they went."""
        loss, norm, missed, *beside = self._outcome.tolist()
        return Outcome(loss, norm, int(missed), tuple(beside))


def waiting_is_free(device: torch.device) -> bool:
    """Say whether a number of a tensor can be read without waiting for anything."""
    return device.type == "cpu"
