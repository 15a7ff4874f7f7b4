"""Weighted sums of tensors of equal shape, in one pass over memory by a C++ kernel, or tensor by tensor in torch.

Sums are accumulated in float32 or higher precision, also under autocast.
"""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from formerlab.kernels.native import load_library

Scalar = float | Tensor
"""A number or a zero-dimensional tensor."""

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[Scalar]) -> Tensor:
    """Return sum over n of weights[n] tensors[n], in the dtype of the last tensor."""
    return weighted_sum_and_products(tensors, weights, None, None, tensors[-1].dtype)[0]


def weighted_sum_and_products(
    tensors: Sequence[Tensor],
    weights: Sequence[Scalar],
    x: Tensor | None,
    addend: Tensor | None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, list[Scalar]]:
    """Return the sum over n of weights[n] tensors[n], plus `addend` if given, and the dot products <tensors[n], x>.

    The tensors, `addend`, x and the sum have one shape. The list has one dot product per tensor, and is empty if x is
    None; its elements are floats on a CPU, otherwise zero-dimensional tensors. The sum has dtype `dtype`, by default
    the dtype of the first tensor.
    """
    dtype = dtype or tensors[0].dtype
    others = [tensor for tensor in (x, addend) if tensor is not None]
    if _fits([*tensors, *others], dtype) and (kernel := _kernel()) is not None:
        return _native(kernel, tensors, weights, x, addend)
    return _eager(tensors, weights, x, addend, dtype)


def sums_implementation() -> str:
    """Return the implementation of sums on the CPU in this process: "native" (C++) or "eager" (plain torch)."""
    return "eager" if _kernel() is None else "native"


@functools.cache
def _kernel() -> ctypes._CFuncPtr | None:
    if (library := load_library("weighted_sum.cpp", "weighted sums")) is None:
        return None
    kernel = library.weighted_sum
    pointer, number = ctypes.c_void_p, ctypes.c_long
    kernel.argtypes = [number, number, *[pointer] * 6, number, ctypes.c_int]
    kernel.restype = None
    return kernel


def _fits(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether the kernel supports these tensors: contiguous, all of dtype `dtype`, outside torch.jit.trace."""
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    supported = dtype in _TYPES and not tracing
    return supported and all(
        type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.dtype == dtype and tensor.is_contiguous()
        for tensor in tensors
    )


def _native(
    kernel: ctypes._CFuncPtr,
    tensors: Sequence[Tensor],
    weights: Sequence[Scalar],
    x: Tensor | None,
    addend: Tensor | None,
) -> tuple[Tensor, list[Scalar]]:
    first, count = tensors[0], len(tensors)
    out = torch.empty_like(first)
    products = (ctypes.c_double * count)()
    kernel(
        _TYPES[first.dtype],
        count,
        (ctypes.c_void_p * count)(*[tensor.data_ptr() for tensor in tensors]),
        (ctypes.c_double * count)(*map(float, weights)),
        None if addend is None else addend.data_ptr(),
        None if x is None else x.data_ptr(),
        out.data_ptr(),
        products,
        first.numel(),
        torch.get_num_threads(),
    )
    return out, [] if x is None else list(products)


def _eager(
    tensors: Sequence[Tensor],
    weights: Sequence[Scalar],
    x: Tensor | None,
    addend: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, list[Scalar]]:
    sum_dtype = torch.promote_types(dtype, torch.float32)
    total = tensors[0].to(sum_dtype) * weights[0]
    for tensor, weight in zip(tensors[1:], weights[1:], strict=True):
        if isinstance(weight, Tensor):
            total.addcmul_(tensor, weight)
        else:
            total.add_(tensor, alpha=weight)
    if addend is not None:
        total.add_(addend)
    if x is None:
        return total.to(dtype), []
    flat = x.flatten().to(sum_dtype)
    products: list[Scalar] = [torch.dot(tensor.flatten().to(sum_dtype), flat) for tensor in tensors]
    if x.device.type == "cpu":
        products = torch.stack([torch.as_tensor(product) for product in products]).tolist()
    return total.to(dtype), products
