"""Provenance of a result: code, versions and machine, and measurements of peak speed and memory."""

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


def utc_timestamp() -> str:
    """Return the current time in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@functools.cache
def git_state() -> dict[str, str | None]:
    """Return `commit`, and `dirty_hash`: the hash of uncommitted changes to tracked files, or None without changes.

    Changes of results and figures are ignored. Both values are None if no repository tracks this file, for example in
    an installed package.
    """
    file = Path(__file__).resolve()
    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)
        commit = _git(file.parent, "rev-parse", "HEAD").strip()
        difference = _git(file.parent, "diff", "HEAD", "--", ":/", ":(top,exclude)results", ":(top,exclude)figures")
    except (OSError, subprocess.CalledProcessError) as error:
        if "safe.directory" in (getattr(error, "stderr", None) or ""):
            print(
                f"warning: records will not contain the commit, because another user owns {file.parents[3]}; "
                f"git config --global --add safe.directory {file.parents[3]} lets git read it",
                file=sys.stderr,
            )
        return {"commit": None, "dirty_hash": None}
    return {"commit": commit, "dirty_hash": fingerprint(difference) if difference else None}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, errors="replace").stdout


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that all results depend on, and of installed `packages`."""
    packages = ("formerlab", "torch", "numpy", "pydantic", "tokenizers", "safetensors", *packages)
    installed = {package: item.version for package in packages for item in distributions(name=package)}
    return {"python": platform.python_version()} | installed | {"torch": str(torch.__version__)}  # +cu130, +cpu


def device_name(device: torch.device) -> str:
    """Return the name of the CPU or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def collect_provenance(device: str | torch.device, *packages: str) -> dict[str, Any]:
    """Return the device, host, git state, versions and time for the record of a run or timing."""
    return {
        "device": device_name(torch.device(device)),
        "host": socket.gethostname(),
        "git": git_state(),
        "versions": versions(*packages),
        "finished": utc_timestamp(),
    }


def matmul_flops_per_s(device: str | torch.device = "cpu", precision: str = "float32") -> float:
    """Measure the peak speed of square matrix products on one device, in FLOP per second.

    `precision` is float32 or bfloat16. The speed depends on the current number of threads.
    """
    device = torch.device(device)
    size, products = (4096, 8) if device.type == "cuda" else (1024, 1)
    wait: Any = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else int
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best, spent = float("inf"), 0.0
    torch.matmul(left, right)  # warm-up
    while spent < 0.05:
        wait()
        began = time.perf_counter()
        for _ in range(products):
            torch.matmul(left, right)
        wait()
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return products * 2 * size**3 / best


def model_flops_utilisation(flops: float, seconds: float, flops_per_s: float, devices: int = 1) -> float:
    """Return the fraction of the peak of all devices that training reached (MFU, arXiv:2204.02311, section 4.1).

    `flops` excludes recomputation. `flops_per_s` is the peak of one device, measured by `matmul_flops_per_s`. It is
    lower than the peak of a data sheet, so the result is higher than published values.
    """
    return flops / seconds / (devices * flops_per_s)


def peak_memory_bytes(device: str | torch.device = "cpu") -> int:
    """Return the peak memory of this process in bytes: allocated memory on a GPU, resident memory on a CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage returns KiB, on macOS bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
