"""The mean of several snapshots of a model's weights, kept as a running sum."""

from typing import Any

import torch
from torch import nn


@torch.no_grad()
def add_weights(model: nn.Module, kept: dict[str, Any]) -> None:
    """Add the model's weights to the sum in `kept`, in float64 so that the order of sums does not show."""
    kept["snapshots"] = kept.get("snapshots", 0) + 1
    sums = kept.setdefault("sums", {})
    for name, weight in model.state_dict().items():
        sums[name] = sums.get(name, 0.0) + weight.double().cpu()


@torch.no_grad()
def mean_weights(model: nn.Module, kept: dict[str, Any]) -> None:
    """Give the model the mean of the snapshots in `kept`."""
    count = kept["snapshots"]
    model.load_state_dict({name: total / count for name, total in kept["sums"].items()})
