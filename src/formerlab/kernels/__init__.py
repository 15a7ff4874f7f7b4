"""Fused kernels. `pruned_attention` is a Triton kernel for GPUs, `*_cpu` and `weighted_sum` are kernels for CPUs in C++
(compiled by `native`) or numba.

The layers and caches that call the kernels contain the same formulas in torch.
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
"""The compilers that `find_compiler` tries, for messages."""


def find_compiler() -> str | None:
    """Return the path of a C++ compiler: $CXX (by default c++), g++ or clang++, or None if the PATH has no compiler."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)


@functools.cache
def triton_usable(feature: str) -> bool:
    """Return whether Triton can be used for tensors on a GPU; log the result once for each `feature`."""
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
    log.warning("%s runs in plain torch (slower) on this GPU: %s", feature, reason)
    return False
