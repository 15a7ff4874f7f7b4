"""Where a result comes from: code, versions, the machine, and what that can do."""

import functools
import platform
import resource
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from formerlab.spec import fingerprint


def now() -> str:
    """Return the present moment, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@functools.cache
def git_state() -> dict[str, str | None]:
    """Return commit and, where tracked files differ from it, a hash of the difference.

    Rows and pictures are left out: they say what earlier runs found, and nothing that trains reads them. Both are empty
    where no repository holds this very file: an installed package may lie in a folder of some other one.
    """
    file = Path(__file__).resolve()
    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        commit = _git(file.parent, "rev-parse", "HEAD").strip()
        difference = _git(file.parent, "diff", "HEAD", "--", ":/", ":(top,exclude)results", ":(top,exclude)figures")
    except (OSError, subprocess.CalledProcessError) as error:
        if "safe.directory" in (getattr(error, "stderr", None) or ""):
            print(
                f"warning: another user owns {file.parents[3]}, so records name no commit; "
                f"git config --global --add safe.directory {file.parents[3]} lets git read it",
                file=sys.stderr,
            )
        return {"commit": None, "dirty_hash": None}
    return {"commit": commit, "dirty_hash": fingerprint(difference) if difference else None}


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, check=True, text=True, errors="replace").stdout


def versions(*further: str) -> dict[str, str]:
    """Return the versions that a result depends on, those of `further` packages included, as far as they are here."""
    packages = ("formerlab", "torch", "numpy", "pydantic", "tokenizers", "safetensors", *further)
    found = {package: found.version for package in packages for found in distributions(name=package)}
    return {"python": platform.python_version()} | found


def device_name(device: torch.device) -> str:
    """Return the name of the processor that computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def circumstances(device: str | torch.device, *packages: str) -> dict[str, Any]:
    """Return what every record says of where and when it was made, with the versions of further packages."""
    return {
        "device": device_name(torch.device(device)),
        "host": socket.gethostname(),
        "git": git_state(),
        "versions": versions(*packages),
        "finished": now(),
    }


def matmul_flops_per_s(device: str | torch.device = "cpu", precision: str = "float32") -> float:
    """Measure the fastest product of two square matrices on one device, in FLOP per second.

    `precision` is that of a run's products, float32 or bfloat16. Matrices are so large that starting a product costs
    nothing. This is what the device reaches at best with the threads it was given, and as a peak it stands in
    `model_flops_utilisation`.
    """
    device = torch.device(device)
    size, in_a_row = (4096, 8) if device.type == "cuda" else (1024, 1)  # so that waiting for a GPU costs nothing either
    wait: Any = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else int
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best, spent = float("inf"), 0.0
    torch.matmul(left, right)  # the first product pays for allocations and for choosing a kernel
    while spent < 0.05:
        wait()
        began = time.perf_counter()
        for _ in range(in_a_row):
            torch.matmul(left, right)
        wait()
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
