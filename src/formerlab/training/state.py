"""The state of a run in progress, which is the content of a checkpoint."""

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
    """Model, optimizer, counters and metrics of a run in progress."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Number of finished optimizer steps."""
    tokens: int = 0
    """Number of tokens that these steps predicted (images for classification)."""
    flops: int = 0
    """Training FLOPs of these steps."""
    training_time_s: float = 0.0
    """Time of optimizer steps, summed over all starts of the run."""
    wall_time_s: float = 0.0
    """Wall time up to the last checkpoint, including start-up, summed over all starts of the run."""
    started: str = ""
    """Time of the first start, ISO 8601, UTC."""
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"train": [], "timing": [], "eval": [], "depth": []})
    tested: dict[str, list[list[Row]]] = field(default_factory=dict)
    """Measured rows of held-out data, by table and group of examples."""
    kept: dict[str, Any] = field(default_factory=dict)
    """State of the task between steps, such as averages of weights."""
    kernels: list[str] = field(default_factory=list)
    """Kernels that computed the steps, in order; several if a run is resumed on another machine."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def advance(self, run: Run, data: Any, start: DataPosition, steps: int) -> int:
        """Add `steps`, which may be negative, to the counters; return the number of the next step (from 1)."""
        sign = 1 if steps > 0 else -1
        for _ in range(abs(steps)):
            step = min(self.step, self.step + sign)
            tokens, flops = run.task.step_counts(run.model, data, run.seed, step, start)
            self.step += sign
            self.tokens += sign * tokens
            self.flops += sign * flops
        return self.step + 1

    def dump(self) -> dict[str, Any]:
        """Return the content of a checkpoint; all processes must call this method.

        Sharded tensors are complete on rank 0 and None on other ranks.
        """
        counts = {name: getattr(self, name) for name in COUNTS}
        tensors = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return counts | processes.full_tensors(tensors)

    def restore(self, content: dict[str, Any]) -> None:
        """Restore a checkpoint; new tensors have the sharding of the old tensors."""
        weights, saved_moments = self.model.state_dict(), content["optimizer"]["state"]
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.model.load_state_dict(
            {name: processes.local_shard(value, weights[name]) for name, value in content["model"].items()}
        )
        moments = {
            index: {name: processes.local_shard(value, parameters[index]) for name, value in tensors.items()}
            for index, tensors in saved_moments.items()
        }
        self.optimizer.load_state_dict(content["optimizer"] | {"state": moments})
        for name in COUNTS:
            setattr(self, name, copy.deepcopy(content[name]))
        # Copy the tensors, because the content is memory-mapped and the next save replaces the file.
        for tensors in self.optimizer.state.values():
            tensors.update({name: value.clone() for name, value in tensors.items() if value.device.type == "cpu"})


COUNTS = [attribute.name for attribute in fields(State)[2:]]
