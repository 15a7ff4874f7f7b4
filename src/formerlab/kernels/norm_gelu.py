"""Triton kernels of Pattention's score l2_gelu: norm and GeLU with one row in registers, and their gradient.

Forward: Z = tau A / ||A||_2 and S = gelu(Z) read A once. Backward: S = gelu(Z) and dA = g - Z (Z . g) / tau^2 with
g = dS gelu'(Z) read Z and dS once. In half precision this moves 6 and 8 bytes per score. Kernels of torch.compile read
rows of more than 1024 scores twice. A program processes one row in two blocks, whose sizes are powers of two that leave
few lanes idle, such as 2048 + 128. All arithmetic is float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 16384
"""Scores of the longest row that fits the registers of a program."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF_ROOT = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)


def fits(tensor: Tensor) -> bool:
    """Return whether the kernels support these scores."""
    supported = tensor.dtype in DTYPES and tensor.dim() == 2 and tensor.is_contiguous()
    return supported and 0 < tensor.shape[1] <= LARGEST


def launch(tokens: int) -> dict[str, int]:
    """Return the compile-time constants and launch options for rows of this length."""
    head = 1 << (tokens.bit_length() - 1)
    tail = triton.next_power_of_2(tokens - head) if tokens > head else 0
    return {"head": head, "tail": tail, "num_warps": min(max(head // 512, 1), 16)}


def normalise_and_activate(products: Tensor, tau: float, smallest_norm: float) -> tuple[Tensor, Tensor]:
    """Replace the rows A by Z in place; return (tau / ||A||_2 in float32, gelu(Z)); see `norm_gelu_cpu.py`."""
    rows, tokens = products.shape
    factor = torch.empty(rows, 1, dtype=torch.float32, device=products.device)
    scores = torch.empty_like(products)
    forward[(rows,)](products, factor, scores, tau, smallest_norm, tokens, **launch(tokens))
    return factor, scores


def scores_and_gradient(grad: Tensor, z: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return gelu(Z), and dA, which replaces `grad` = dS in place."""
    rows, tokens = z.shape
    scores = torch.empty_like(z)
    backward[(rows,)](grad, z, scores, 1 / (tau * tau), tokens, **launch(tokens))
    return scores, grad


@triton.jit
def forward(a, factor, scores, tau, smallest, tokens, head: tl.constexpr, tail: tl.constexpr):  # noqa: ANN201
    """Normalise and activate one row."""
    row = tl.program_id(0).to(tl.int64)
    a, scores = a + row * tokens, scores + row * tokens
    first = tl.load(a + tl.arange(0, head)).to(tl.float32)
    squares = tl.sum(first * first, 0)
    if tail:
        column = head + tl.arange(0, tail)
        second = tl.load(a + column, mask=column < tokens, other=0.0).to(tl.float32)
        squares += tl.sum(second * second, 0)
    norm = tl.sqrt(squares)
    scale = tl.where(norm > smallest, tau / tl.maximum(norm, smallest), 0.0)
    tl.store(factor + row, scale)
    z = (first * scale).to(a.dtype.element_ty)
    tl.store(a + tl.arange(0, head), z)
    rounded = z.to(tl.float32)
    tl.store(scores + tl.arange(0, head), (rounded * _cdf(rounded)).to(a.dtype.element_ty))
    if tail:
        column = head + tl.arange(0, tail)
        z = (second * scale).to(a.dtype.element_ty)
        tl.store(a + column, z, mask=column < tokens)
        rounded = z.to(tl.float32)
        tl.store(scores + column, (rounded * _cdf(rounded)).to(a.dtype.element_ty), mask=column < tokens)


@triton.jit
def backward(grad, z, scores, inverse, tokens, head: tl.constexpr, tail: tl.constexpr):  # noqa: ANN201
    """Compute the scores and the gradient of one row; `inverse` is 1 / tau^2."""
    row = tl.program_id(0).to(tl.int64)
    grad, z, scores = grad + row * tokens, z + row * tokens, scores + row * tokens
    column = tl.arange(0, head)
    first = tl.load(z + column).to(tl.float32)
    cdf = _cdf(first)
    slope = tl.load(grad + column).to(tl.float32) * (cdf + first * _density(first))
    projection = tl.sum(slope * first, 0)
    tl.store(scores + column, (first * cdf).to(z.dtype.element_ty))
    if tail:
        column = head + tl.arange(0, tail)
        second = tl.load(z + column, mask=column < tokens, other=0.0).to(tl.float32)
        cdf = _cdf(second)
        incoming = tl.load(grad + column, mask=column < tokens, other=0.0).to(tl.float32)
        second_slope = incoming * (cdf + second * _density(second))
        projection += tl.sum(second_slope * second, 0)
        tl.store(scores + column, (second * cdf).to(z.dtype.element_ty), mask=column < tokens)
    projection *= inverse
    tl.store(grad + tl.arange(0, head), (slope - first * projection).to(z.dtype.element_ty))
    if tail:
        column = head + tl.arange(0, tail)
        tl.store(grad + column, (second_slope - second * projection).to(z.dtype.element_ty), mask=column < tokens)


@triton.jit
def _cdf(z):
    """Return the normal distribution function; GeLU is z cdf(z), and its derivative is cdf(z) + z density(z)."""
    return 0.5 * (1 + tl.erf(z * HALF_ROOT))


@triton.jit
def _density(z):
    return DENSITY * tl.exp(-0.5 * z * z)
