"""Native kernel of rotary positions for the CPU: one pass over queries or keys, wherever their heads lie in memory."""

import ctypes
import functools
import logging

import torch
from torch import Tensor

from formerlab.kernels.native import BFLOAT16, TYPES, compiled


def fits(x: Tensor, table: Tensor) -> bool:
    """Say whether the kernel can rotate a tensor (plain memory of a type it knows) and was compiled here."""
    plain = type(x) is Tensor and x.device.type == "cpu" and x.ndim == 4 and x.stride(-1) == 1
    return plain and x.dtype in TYPES and table.dtype == torch.float32 and _library() is not None


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool, back: bool) -> Tensor:
    """Return x (batch, heads, time, d_head) with every pair of channels rotated, or rotated back.

    Pairs are (2i, 2i + 1) where `interleaved`, else (i, i + r/2); channels behind them pass unchanged. The tables are
    contiguous and float32: `cosine` (time, d_head) and `sine` (time, r/2).
    """
    out = torch.empty_like(x)
    kernel = getattr(_library(), f"rotate_{TYPES[x.dtype]}")
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, out, cosine, sine))
    sizes = map(ctypes.c_long, (*x.shape, sine.shape[1], *x.stride()[:3], *out.stride()[:3]))
    kernel(*pointers, *sizes, int(interleaved), ctypes.c_float(-1.0 if back else 1.0), torch.get_num_threads())
    return out


@functools.cache
def _library() -> ctypes.CDLL | None:
    library = compiled("rotary", BFLOAT16 + _SOURCE)
    logging.getLogger(__name__).info("rotary positions: %s", "plain torch" if library is None else "native kernel")
    return library


_SOURCE = r"""
template <int STEP, class T>  // STEP is the distance between two pairs: 2 where they are interleaved, else 1
inline void row(const T* __restrict x, T* __restrict out, const float* __restrict cosine, const float* __restrict sine,
                float sign, long width, long pairs) {
    const long other = STEP == 2 ? 1 : pairs;
#pragma omp simd
    for (long i = 0; i < pairs; i++) {
        const float a = wide(x[i * STEP]), b = wide(x[i * STEP + other]);
        const float c = cosine[i * STEP], s = sign * sine[i];
        narrow(a * c - b * s, out[i * STEP]);
        narrow(b * c + a * s, out[i * STEP + other]);
    }
    for (long e = 2 * pairs; e < width; e++) out[e] = x[e];
}

template <class T>
void rotate(const T* x, T* out, const float* cosine, const float* sine, long batch, long heads, long time, long width,
            long pairs, long xb, long xh, long xt, long ob, long oh, long ot, int interleaved, float sign,
            int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (long b = 0; b < batch; b++)
        for (long t = 0; t < time; t++)
            for (long h = 0; h < heads; h++) {
                const T* from = x + b * xb + h * xh + t * xt;
                T* to = out + b * ob + h * oh + t * ot;
                const float *c = cosine + t * width, *s = sine + t * pairs;
                if (interleaved) row<2>(from, to, c, s, sign, width, pairs);
                else row<1>(from, to, c, s, sign, width, pairs);
            }
}

#define ROTATE(T)                                                                                                    \
    extern "C" void rotate_##T(const T* x, T* out, const float* cosine, const float* sine, long batch, long heads,   \
                               long time, long width, long pairs, long xb, long xh, long xt, long ob, long oh,       \
                               long ot, int interleaved, float sign, int threads) {                                  \
        rotate(x, out, cosine, sine, batch, heads, time, width, pairs, xb, xh, xt, ob, oh, ot, interleaved, sign,    \
               threads);                                                                                             \
    }
ROTATE(float)
ROTATE(bfloat16)
"""
