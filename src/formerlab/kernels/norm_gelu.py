"""Triton kernels for Pattention's score l2_gelu: norm and GeLU with one row in registers, and their gradient.

The forward pass computes Z = tau A / ||A||_2 and S = gelu(Z) and reads A once. The backward pass computes S = gelu(Z)
and dA = g - Z (Z . g) / tau^2 with g = grad gelu'(Z), and reads Z and grad once. `grad` is the gradient of S times tau
/ ||A||_2, so dA is the gradient of A. In half precision, the forward pass moves 6 bytes per score, and the backward
pass moves 8 bytes. All arithmetic is float32.

A program processes one row in two blocks, main and tail. Their sizes are powers of two that leave few lanes idle, such
as 2048 + 128.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SCORES = 16384
"""Largest number of scores in a row: a row must fit the registers of a program."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)


def fits(tensor: Tensor) -> bool:
    """Return whether the kernels support the shape (rows, parameter tokens), layout and dtype of scores."""
    supported = tensor.dtype in DTYPES and tensor.dim() == 2 and tensor.is_contiguous()
    return supported and 0 < tensor.shape[1] <= MAX_SCORES


def launch_options(tokens: int) -> dict[str, int]:
    """Return the compile-time constants and launch options for rows of `tokens` scores."""
    main_size = 1 << (tokens.bit_length() - 1)
    tail_size = triton.next_power_of_2(tokens - main_size) if tokens > main_size else 0
    return {"main_size": main_size, "tail_size": tail_size, "num_warps": min(max(main_size // 512, 1), 16)}


def normalise_and_activate(products: Tensor, tau: float, smallest_norm: float) -> tuple[Tensor, Tensor]:
    """Replace `products` (A) by Z in place; return tau / ||A||_2 and gelu(Z).

    A, Z and gelu(Z) are (rows, parameter tokens); the row factor tau / ||A||_2 is (rows, 1) in float32. A row with a
    norm of at most `smallest_norm` becomes zero, and its factor is zero.
    """
    rows, tokens = products.shape
    factor = torch.empty(rows, 1, dtype=torch.float32, device=products.device)
    scores = torch.empty_like(products)
    forward[(rows,)](products, factor, scores, tau, smallest_norm, tokens, **launch_options(tokens))
    return factor, scores


def scores_and_gradient(grad: Tensor, z: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return gelu(Z) and dA, each (rows, parameter tokens); dA overwrites `grad`, which contains dS tau / ||A||_2."""
    rows, tokens = z.shape
    scores = torch.empty_like(z)
    backward[(rows,)](grad, z, scores, 1 / (tau * tau), tokens, **launch_options(tokens))
    return scores, grad


@triton.jit
def forward(  # noqa: ANN201
    a, factor, scores, tau, smallest_norm, tokens, main_size: tl.constexpr, tail_size: tl.constexpr
):  # fmt: skip
    """Normalise and activate one row."""
    row = tl.program_id(0).to(tl.int64)
    a, scores = a + row * tokens, scores + row * tokens
    main_a = tl.load(a + tl.arange(0, main_size)).to(tl.float32)
    squares = tl.sum(main_a * main_a, 0)
    if tail_size:
        column = main_size + tl.arange(0, tail_size)
        tail_a = tl.load(a + column, mask=column < tokens, other=0.0).to(tl.float32)
        squares += tl.sum(tail_a * tail_a, 0)
    norm = tl.sqrt(squares)
    scale = tl.where(norm > smallest_norm, tau / tl.maximum(norm, smallest_norm), 0.0)
    tl.store(factor + row, scale)
    z = (main_a * scale).to(a.dtype.element_ty)
    tl.store(a + tl.arange(0, main_size), z)
    rounded = z.to(tl.float32)
    tl.store(scores + tl.arange(0, main_size), (rounded * _cdf(rounded)).to(a.dtype.element_ty))
    if tail_size:
        column = main_size + tl.arange(0, tail_size)
        z = (tail_a * scale).to(a.dtype.element_ty)
        tl.store(a + column, z, mask=column < tokens)
        rounded = z.to(tl.float32)
        tl.store(scores + column, (rounded * _cdf(rounded)).to(a.dtype.element_ty), mask=column < tokens)


@triton.jit
def backward(  # noqa: ANN201
    grad, z, scores, inverse_squared_tau, tokens, main_size: tl.constexpr, tail_size: tl.constexpr
):  # fmt: skip
    """Compute the scores and the gradient of one row; `inverse_squared_tau` is 1 / tau^2."""
    row = tl.program_id(0).to(tl.int64)
    grad, z, scores = grad + row * tokens, z + row * tokens, scores + row * tokens
    column = tl.arange(0, main_size)
    main_z = tl.load(z + column).to(tl.float32)
    cdf = _cdf(main_z)
    main_grad = tl.load(grad + column).to(tl.float32) * (cdf + main_z * _density(main_z))
    projection = tl.sum(main_grad * main_z, 0)
    tl.store(scores + column, (main_z * cdf).to(z.dtype.element_ty))
    if tail_size:
        column = main_size + tl.arange(0, tail_size)
        tail_z = tl.load(z + column, mask=column < tokens, other=0.0).to(tl.float32)
        cdf = _cdf(tail_z)
        incoming = tl.load(grad + column, mask=column < tokens, other=0.0).to(tl.float32)
        tail_grad = incoming * (cdf + tail_z * _density(tail_z))
        projection += tl.sum(tail_grad * tail_z, 0)
        tl.store(scores + column, (tail_z * cdf).to(z.dtype.element_ty), mask=column < tokens)
    projection *= inverse_squared_tau
    tl.store(grad + tl.arange(0, main_size), (main_grad - main_z * projection).to(z.dtype.element_ty))
    if tail_size:
        column = main_size + tl.arange(0, tail_size)
        tl.store(grad + column, (tail_grad - tail_z * projection).to(z.dtype.element_ty), mask=column < tokens)


@triton.jit
def _cdf(z):
    """Return the standard normal CDF at z. GeLU is z cdf(z), and its derivative is cdf(z) + z density(z)."""
    return 0.5 * (1 + tl.erf(z * INVERSE_SQRT_2))


@triton.jit
def _density(z):
    """Return the standard normal density at z."""
    return INVERSE_SQRT_2_PI * tl.exp(-0.5 * z * z)
