"""C++ kernel for rotary position embedding: one pass over queries or keys, for any strides of batch, heads and time."""

import ctypes

import torch
from torch import Tensor

from formerlab.kernels.native import TYPES, load_library


def fits(x: Tensor, table: Tensor) -> bool:
    """Return whether the kernel is compiled and supports x (4 axes, contiguous channels) and a table of cosines."""
    supported = type(x) is Tensor and x.device.type == "cpu" and x.ndim == 4 and x.stride(-1) == 1
    return supported and x.dtype in TYPES and table.dtype == torch.float32 and _library() is not None


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool, inverse: bool) -> Tensor:
    """Rotate the first r = 2 sine.shape[1] channels of x (batch, heads, time, d_head) in pairs; copy the others.

    Pairs are (2i, 2i + 1) if `interleaved`, otherwise (i, i + r/2). `inverse` negates the angles. The first r channels
    of `cosine` (time, d_head) contain each value twice, once per channel of a pair; `sine` (time, r/2) has one value
    per pair. Both are contiguous and float32.
    """
    out = torch.empty_like(x)
    kernel = getattr(_library(), f"rotate_{TYPES[x.dtype]}")
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, out, cosine, sine))
    sizes = map(ctypes.c_long, (*x.shape, sine.shape[1], *x.stride()[:3], *out.stride()[:3]))
    kernel(*pointers, *sizes, int(interleaved), ctypes.c_float(-1.0 if inverse else 1.0), torch.get_num_threads())
    return out


def _library() -> ctypes.CDLL | None:
    return load_library("rotary.cpp", "rotary position embedding")
