"""The state of a run in progress, and the optimizer's steps, none of which is taken once a number is not finite."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from formerlab.tasks.task import Place
from formerlab.training import processes
from formerlab.training.run import Run

Row = list[Any]

COUNTS = ("step", "tokens", "flops", "training_time_s", "wall_time_s", "started", "rows", "tested", "kept", "kernels")


@dataclass
class State:
    """All that changes while a run trains, and all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Finished optimizer steps."""
    tokens: int = 0
    """Tokens that these steps predicted (images, where the task is classification)."""
    flops: int = 0
    """Training FLOPs of these steps."""
    training_time_s: float = 0.0
    """Time inside optimizer steps, over all starts of the run."""
    wall_time_s: float = 0.0
    """Time that processes spent on the run until it was last saved, their starts included, over all its starts."""
    started: str = ""
    """When the run started for the first time, ISO 8601, UTC."""
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"train": [], "timing": [], "eval": [], "depth": []})
    tested: dict[str, list[list[Row]]] = field(default_factory=dict)
    """Rows of the held-out streams, by table and group of examples, as far as they are measured."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the task keeps from step to step beside the model, such as averages of weights; empty for most."""
    kernels: list[str] = field(default_factory=list)
    """Paths of kernels on which the steps were computed, one after the other; a resume may have changed it."""

    def count(self, run: Run, data: Any, start: Place, steps: int) -> int:
        """Count so many steps more, or, where the number is negative, take them back; return the number of the next."""
        for _ in range(abs(steps)):
            self.step -= steps < 0
            tokens, flops = run.task.step_counts(run.model, data, run.seed, self.step, start)
            self.step += steps > 0
            self.tokens += tokens if steps > 0 else -tokens
            self.flops += flops if steps > 0 else -flops
        return self.step + 1

    def dump(self) -> dict[str, Any]:
        """Return the content of a checkpoint; where tensors are split all processes take part, the first has it."""
        counts = {name: getattr(self, name) for name in COUNTS}
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return counts | processes.whole_tensors(tensors)

    def restore(self, content: dict[str, Any]) -> None:
        """Take over the content of a checkpoint, split as this state is."""
        weights, held = self.model.state_dict(), content["optimizer"]["state"]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.model.load_state_dict(
            {name: processes.part(value, weights[name]) for name, value in content["model"].items()}
        )
        moments = {
            index: {name: processes.part(value, parameters[index]) for name, value in of_one.items()}
            for index, of_one in held.items()
        }
        self.optimizer.load_state_dict(content["optimizer"] | {"state": moments})
        for name in COUNTS:
            setattr(self, name, copy.deepcopy(content[name]))
        for of_one in self.optimizer.state.values():  # the content is a mapped file, which the next save replaces
            of_one.update({name: value.clone() for name, value in of_one.items() if value.device.type == "cpu"})


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
