"""The state of a run in progress: everything that changes while it trains, which is what a checkpoint holds."""

import copy
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from formerlab.tasks.task import DataPosition
from formerlab.training import processes
from formerlab.training.run import Run

Row = list[Any]


@dataclass
class State:
    """Model, optimizer, and what was counted and measured so far."""

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

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def count(self, run: Run, data: Any, start: DataPosition, steps: int) -> int:
        """Count so many steps more, or fewer where negative; return the number of the next step."""
        sign = 1 if steps > 0 else -1
        for _ in range(abs(steps)):
            step = min(self.step, self.step + sign)
            tokens, flops = run.task.step_counts(run.model, data, run.seed, step, start)
            self.step += sign
            self.tokens += sign * tokens
            self.flops += sign * flops
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


COUNTS = [one.name for one in fields(State)[2:]]
