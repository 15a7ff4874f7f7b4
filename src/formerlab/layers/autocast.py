"""What autocast does to the operands of our own matrix products, and whether torch.func transforms what is computed."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def autocasts(tensor: Tensor) -> bool:
    """Say whether autocast is on where a tensor lies. torch has none for the device `meta`, and its own question for
    that, `is_autocast_available`, breaks compiled graphs before release 2.13.
    """
    device = tensor.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def transforms() -> bool:
    """Say whether torch.func (vmap, grad, jvp, ...) or forward-mode AD is at work.

    They follow torch's own operations; autograd functions and kernels of ours then give way to the plain formula.
    """
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products of a tensor are of its own type."""
    return torch.autocast(tensor.device.type, enabled=False) if autocasts(tensor) else nullcontext()


def operands(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors in the type that autocast gives to the operands of a matrix product; float64 stays."""
    if not autocasts(tensors[0]) or tensors[0].dtype == torch.float64:
        return tensors
    lowered = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(tensor.to(lowered) for tensor in tensors)
