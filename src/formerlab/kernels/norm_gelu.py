"""Triton kernels of Pattention's score l2_gelu: norm and GeLU in one pass over memory, and their gradient.

One program works on one row, in blocks of parameter tokens; sums and functions are float32 whatever the tensors are. A
row is read twice, the second time from the cache. With TRITON_INTERPRET=1, set before this module is imported, the same
code runs on the CPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 4096


def normalise_and_activate(products: Tensor, tau: float, smallest_norm: float) -> tuple[Tensor, Tensor]:
    """Turn the rows A into Z = tau A / ||A||_2 in place; return (tau / ||A||_2 in float32, gelu(Z)).

    A row whose norm is at most `smallest_norm` becomes zero, with a factor of zero. `products` is contiguous and of two
    dimensions.
    """
    rows, tokens = products.shape
    factor = torch.empty(rows, 1, dtype=torch.float32, device=products.device)
    scores = torch.empty_like(products)
    if products.numel():
        _forward[(rows,)](products, factor, scores, tokens, tau, smallest_norm, **_launch(tokens))
    return factor, scores


def scores_and_gradient(grad: Tensor, z: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return gelu(Z), and `grad` = dS turned in place into g - Z (Z . g) / tau^2 with g = dS gelu'(Z), row by row."""
    rows, tokens = z.shape
    scores = torch.empty_like(z)
    if z.numel():
        _backward[(rows,)](grad, z, scores, tokens, 1 / (tau * tau), **_launch(tokens))
    return scores, grad


def _launch(tokens: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(tokens), LARGEST_BLOCK)
    return {"block": block, "num_warps": 8 if block >= 2048 else 4}


@triton.jit
def _cdf(z):
    return 0.5 * (1 + tl.erf(z * 0.7071067811865476))


@triton.jit
def _forward(products, factor, scores, tokens, tau, smallest_norm, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    products += row * tokens
    scores += row * tokens
    squares = tl.zeros([block], dtype=tl.float32)
    for start in range(0, tokens, block):
        a = tl.load(products + start + columns, mask=start + columns < tokens, other=0.0).to(tl.float32)
        squares += a * a
    norm = tl.sqrt(tl.sum(squares, axis=0))
    scale = tl.where(norm > smallest_norm, tau / tl.maximum(norm, smallest_norm), 0.0)
    tl.store(factor + row, scale)
    for start in range(0, tokens, block):
        inside = start + columns < tokens
        a = tl.load(products + start + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = (a * scale).to(products.dtype.element_ty)  # the gradient will see Z as it is stored
        z = rounded.to(tl.float32)
        s = z * _cdf(z)
        tl.store(products + start + columns, rounded, mask=inside)
        tl.store(scores + start + columns, s.to(scores.dtype.element_ty), mask=inside)


@triton.jit
def _through_gelu(grad, z):
    """Return dS gelu'(z), gelu'(z) = cdf(z) + z pdf(z) of the standard normal distribution."""
    return grad * (_cdf(z) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z))


@triton.jit
def _backward(grad, z_rows, scores, tokens, share, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    grad += row * tokens
    z_rows += row * tokens
    scores += row * tokens
    along = tl.zeros([block], dtype=tl.float32)
    for start in range(0, tokens, block):
        inside = start + columns < tokens
        z = tl.load(z_rows + start + columns, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + columns, mask=inside, other=0.0).to(tl.float32)
        along += z * _through_gelu(g, z)
    radial = tl.sum(along, axis=0) * share
    for start in range(0, tokens, block):
        inside = start + columns < tokens
        z = tl.load(z_rows + start + columns, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(scores + start + columns, (z * _cdf(z)).to(scores.dtype.element_ty), mask=inside)
        tl.store(grad + start + columns, (_through_gelu(g, z) - z * radial).to(grad.dtype.element_ty), mask=inside)
