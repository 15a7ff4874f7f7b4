"""Fused kernels: Triton for GPUs, C++ or numba (`*_cpu`) for CPUs. Other modules have the same formulas in torch.

Modules with Triton kernels are imported only on a GPU. Without a C++ compiler, torch computes the formulas.
"""

import functools
import importlib.util
import logging
import os
import shutil

import torch

EMPTY_POSITION = 2**30
"""The position of an empty cache slot: later than any query, so the slot is masked and never evicted."""


COMPILERS = "CXX, c++, g++, clang++"
"""The compilers that `compiler` tries, for messages."""


def compiler() -> str | None:
    """Return the path of a C++ compiler: $CXX (by default c++), g++ or clang++, or None if the PATH has no compiler."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)


@functools.cache
def usable(feature: str) -> bool:
    """Return whether Triton kernels can run `feature` on this machine's GPU; log the result once."""
    log = logging.getLogger(__name__)
    if importlib.util.find_spec("triton") is None:
        reason = "triton is not installed"
    elif not any((os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang"))):
        reason = "triton needs a C compiler (CC, gcc, clang)"
    elif torch.version.hip is not None:
        reason = "the kernel sets NVIDIA's register limit (maxnreg), which ROCm does not support"
    else:
        log.info("%s runs in fused kernels on this GPU", feature)
        return True
    log.warning("%s runs in plain torch on this GPU, which is slower: %s", feature, reason)
    return False
