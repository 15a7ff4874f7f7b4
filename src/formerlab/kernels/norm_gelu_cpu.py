"""C++ kernels for Pattention's score l2_gelu: norm and GeLU in one pass over memory, and their gradient.

Rows are processed in blocks that fit the L1 cache. All arithmetic is float32 for every dtype of the tensors. Results do
not depend on the number of threads.
"""

import ctypes

import torch
from torch import Tensor

from formerlab.kernels.native import TYPES, load_library


def fits(tensor: Tensor) -> bool:
    """Return whether the kernels are compiled and support this tensor (contiguous, float32 or bfloat16, on a CPU)."""
    supported = type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.is_contiguous()
    return supported and tensor.dtype in TYPES and load_library("norm_gelu.cpp", "Pattention") is not None


def normalise_and_activate(products: Tensor, tau: float, smallest_norm: float) -> tuple[Tensor, Tensor]:
    """Replace `products` (A) by Z = tau A / ||A||_2 in place; return tau / ||A||_2 and gelu(Z).

    A, Z and gelu(Z) are (rows, parameter tokens); the row factor tau / ||A||_2 is (rows, 1) in float32. A row with a
    norm of at most `smallest_norm` becomes zero, and its factor is zero.
    """
    factor, scores = torch.empty(len(products), 1, dtype=torch.float32), torch.empty_like(products)
    _call("forward", (products, factor, scores), tau, smallest_norm)
    return factor, scores


def scores_and_gradient(grad: Tensor, z: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return gelu(Z) and dA = g - Z (Z . g) / tau^2 with g = grad gelu'(Z), each (rows, parameter tokens).

    `grad` is the gradient of gelu(Z) times tau / ||A||_2, so that dA is the gradient of A; dA overwrites `grad`.
    """
    scores = torch.empty_like(z)
    _call("backward", (grad, z, scores), 1 / (tau * tau))
    return scores, grad


def _call(name: str, tensors: tuple[Tensor, ...], *constants: float) -> None:
    kernel = getattr(load_library("norm_gelu.cpp", "Pattention"), f"{name}_{TYPES[tensors[0].dtype]}")
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
    sizes, floats = map(ctypes.c_long, tensors[0].shape), map(ctypes.c_float, constants)
    kernel(*pointers, *sizes, *floats, torch.get_num_threads())
