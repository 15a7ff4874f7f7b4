"""Averages of a model's weights: the mean of several snapshots, and the moving average."""

from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def add_weights(model: nn.Module, averaging: dict[str, Any]) -> None:
    """Add the model's weights to the sum in `averaging`, in float64 so that the order of sums does not show."""
    averaging["snapshots"] = averaging.get("snapshots", 0) + 1
    sums = averaging.setdefault("sums", {})
    for name, weight in model.state_dict().items():
        sums[name] = sums.get(name, 0.0) + weight.double().cpu()


@torch.no_grad()
def mean_weights(model: nn.Module, averaging: dict[str, Any]) -> None:
    """Give the model the mean of the snapshots in `averaging`."""
    count = averaging["snapshots"]
    model.load_state_dict({name: total / count for name, total in averaging["sums"].items()})


def update_average(average: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    """Set average <- decay average + (1 - decay) weights, in place; an empty one starts as a copy.

    It is timm's ModelEmaV3 on plain tensors, so that a checkpoint holds it like any other state.
    """
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if not average:
        average.update({name: weight.clone() for name, weight in weights.items()})
        return
    for name, weight in weights.items():
        average[name] = average[name].to(weight.device)  # a checkpoint comes back on the CPU
    torch._foreach_lerp_(list(average.values()), list(weights.values()), 1 - decay)


def use_average(average: dict[str, Tensor], model: nn.Module) -> None:
    """Put the average in the place of the weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(average[name])
