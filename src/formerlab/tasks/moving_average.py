"""The moving average of weights that evaluation uses in place of the last ones."""

import torch
from torch import Tensor, nn


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
