"""The state of a run in progress."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Row = list[float | int | str]

COUNTS = ("step", "training_time_s", "wall_time_s", "started", "rows", "kept")


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

    def dump(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, content: dict[str, Any]) -> None:
        """Take over the content of a checkpoint."""
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        for name in COUNTS:
            setattr(self, name, content[name])
