"""Cross-entropy of a linear head over a large vocabulary without storing the logits."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from formerlab.layers.autocast import autocast_operands, func_transform_active

CHUNK_LOGITS = 2**25
"""Largest number of logits in a chunk (at least one row)."""

COMPILED_LOGITS = 2**31 - 1
"""Largest number of logits of one product in a compiled graph, because its kernels index elements with 32 bits."""


def linear_cross_entropy(
    x: Float[Tensor, "rows width"], weight: Float[Tensor, "vocabulary width"], targets: Int[Tensor, " rows"]
) -> Float[Tensor, ""]:
    """Return the mean over rows i of -log softmax(W x_i)[target_i], in nats.

    With P = softmax(X W^T) and one-hot targets Y, the gradient of the logits is (P - Y) / rows. The forward pass
    processes chunks of rows: it overwrites the log-probabilities of a chunk with the gradient of its logits, writes the
    rows of the gradient of X, and accumulates the gradient of W. Softmax and sums are at least float32; matrix products
    follow autocast. Second derivatives are not supported. torch.nn.functional.linear_cross_entropy uses the same method
    with another order of summation.

    Under torch.compile and torch.func, the plain formula is used, which stores the logits. All targets must be token
    ids; there is no `ignore_index`. Raises ValueError if the numbers of targets and rows differ.
    """
    if len(targets) != len(x):
        raise ValueError(f"{len(targets)} targets for {len(x)} rows: give one target (the next token) per row")
    x, weight = autocast_operands(x, weight)
    if torch.compiler.is_compiling() or func_transform_active():
        rows = max(1, COMPILED_LOGITS // len(weight))
        sums = [
            F.cross_entropy(F.linear(chunk, weight).to(_compute_dtype(weight)), chunk_targets, reduction="sum")
            for chunk, chunk_targets in zip(torch.split(x, rows), torch.split(targets, rows), strict=True)
        ]
        return torch.stack(sums).sum() / len(x)
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    loss: Tensor = _LinearCrossEntropy.apply(x, weight, targets, needs_grad)  # type: ignore[no-untyped-call]
    return loss


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, needs_grad: bool) -> Tensor:
        total = torch.zeros((), dtype=_compute_dtype(x), device=x.device)
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=_compute_dtype(weight))
        rows = max(1, CHUNK_LOGITS // len(weight))
        for start in range(0, len(x), rows):
            chunk, chunk_targets = x[start : start + rows], targets[start : start + rows, None]
            logits = chunk @ weight.T
            log_probs = torch.log_softmax(logits, dim=-1, dtype=total.dtype)
            total -= log_probs.gather(1, chunk_targets).sum()
            if needs_grad:
                grad_logits = torch.exp(log_probs, out=log_probs)
                grad_logits.scatter_add_(1, chunk_targets, grad_logits.new_full(chunk_targets.shape, -1.0))
                grad_logits = grad_logits.to(x.dtype)
                torch.mm(grad_logits, weight, out=grad_x[start : start + rows])
                grad_weight += grad_logits.T @ chunk
        if needs_grad:
            ctx.save_for_backward(grad_x, grad_weight)
            ctx.rows, ctx.dtype = len(x), weight.dtype
        return total / len(x)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_x, grad_weight = ctx.saved_tensors
        scale = grad / ctx.rows
        return (grad_x * scale).to(grad_x.dtype), (grad_weight * scale).to(ctx.dtype), None, None
