"""Helpers for custom autograd functions: casts under autocast, and a check for torch.func transforms."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def autocast_enabled(tensor: Tensor) -> bool:
    """Return whether autocast is enabled on the tensor's device."""
    device = tensor.device.type
    # `torch.amp.is_autocast_available` causes a graph break under torch.compile before torch 2.13.
    return device != "meta" and torch.is_autocast_enabled(device)


def func_transform_active() -> bool:
    """Return whether a torch.func transform (vmap, grad, jvp, ...) or forward-mode AD is active.

    Transforms trace only torch operations, so callers compute the plain formula without custom autograd functions.
    """
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context that disables autocast on the tensor's device."""
    return torch.autocast(tensor.device.type, enabled=False) if autocast_enabled(tensor) else nullcontext()


def autocast_operands(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors as autocast casts the operands of a matrix product.

    If the first tensor is float64, all tensors are returned unchanged.
    """
    if not autocast_enabled(tensors[0]) or tensors[0].dtype == torch.float64:
        return tensors
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(tensor.to(dtype) for tensor in tensors)
