"""What a machine does in a second, and how much of it training uses."""

import resource
import sys
import time

import torch


def matmul_flops_per_s(
    device: str | torch.device = "cpu", precision: str = "float32", *, size: int | None = None, seconds: float = 0.05
) -> float:
    """Measure the fastest product of two square matrices on one device, in FLOP per second.

    `precision` is that of a run's products, float32 or bfloat16. Without `size` matrices are large enough that starting
    a product costs nothing. This is what the device reaches at best with the threads it was given, and as a peak it
    stands in `model_flops_utilisation`.
    """
    device = torch.device(device)
    size = size or (4096 if device.type == "cuda" else 1024)
    in_a_row = 8 if device.type == "cuda" else 1  # so that waiting for a GPU costs nothing either
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best, spent = float("inf"), 0.0
    torch.matmul(left, right)  # the first product pays for allocations and for choosing a kernel
    while spent < seconds:
        _synchronise(device)
        began = time.perf_counter()
        for _ in range(in_a_row):
            torch.matmul(left, right)
        _synchronise(device)
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return in_a_row * 2 * size**3 / best


def model_flops_utilisation(flops: float, seconds: float, flops_per_s: float, devices: int = 1) -> float:
    """Return the share of the peak of so many devices that training reached: FLOPs of the model in `seconds`.

    Only what the model needs counts, nothing that is computed twice (MFU, arXiv:2204.02311, section 4.1). The peak here
    is the measured one of `matmul_flops_per_s`, not that of a data sheet, so shares are higher than published ones.
    """
    return flops / seconds / (devices * flops_per_s)


def peak_memory_bytes(device: str | torch.device = "cpu") -> int:
    """Return the largest memory this process has held: allocated on a GPU, resident otherwise."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts KiB, but bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
