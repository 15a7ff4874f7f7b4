"""Where a result comes from: code, versions, machine."""

import functools
import platform
import socket
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from formerlab.spec import fingerprint

PACKAGES = ("formerlab", "torch", "numpy", "pydantic", "tokenizers", "safetensors")


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


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {"python": platform.python_version()} | versions_of(*PACKAGES)


def versions_of(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """Return the name of the processor that computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def host() -> str:
    """Return the name of the machine."""
    return socket.gethostname()
