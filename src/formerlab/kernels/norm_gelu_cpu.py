"""Native kernels of Pattention's score l2_gelu for the CPU: norm and GeLU in one pass over memory, and their gradient.

Rows are worked on one by one, in blocks that stay in the first-level cache. Sums and functions are float32 whatever the
tensors are, and a result is the same for every number of threads.
"""

import ctypes

import torch
from torch import Tensor

from formerlab.kernels.native import TYPES, library


def fits(tensor: Tensor) -> bool:
    """Say whether the kernels can work on a tensor (plain memory of a type they know) and were compiled here."""
    plain = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.is_contiguous()
    return plain and tensor.dtype in TYPES and library("norm_gelu.cpp", "Pattention") is not None


def normalise_and_activate(products: Tensor, tau: float, smallest_norm: float) -> tuple[Tensor, Tensor]:
    """Turn the rows A into Z = tau A / ||A||_2 in place; return (tau / ||A||_2 in float32, gelu(Z)).

    A row whose norm is at most `smallest_norm` becomes zero, with a factor of zero.
    """
    factor, scores = torch.empty(len(products), 1, dtype=torch.float32), torch.empty_like(products)
    _call("forward", (products, factor, scores), tau, smallest_norm)
    return factor, scores


def scores_and_gradient(grad: Tensor, z: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return gelu(Z), and `grad` = dS turned in place into g - Z (Z . g) / tau^2 with g = dS gelu'(Z), row by row."""
    scores = torch.empty_like(z)
    _call("backward", (grad, z, scores), 1 / (tau * tau))
    return scores, grad


def _call(name: str, tensors: tuple[Tensor, ...], *numbers: float) -> None:
    kernel = getattr(library("norm_gelu.cpp", "Pattention"), f"{name}_{TYPES[tensors[0].dtype]}")
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
    sizes, reals = map(ctypes.c_long, tensors[0].shape), map(ctypes.c_float, numbers)
    kernel(*pointers, *sizes, *reals, torch.get_num_threads())
