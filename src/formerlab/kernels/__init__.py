"""Fused kernels, each for a formula that stands elsewhere in plain torch: Triton's for GPUs, C++ (`*_cpu`) for CPUs.

Modules of Triton's kernels are imported where there is a GPU; those in C++ do without where there is no compiler.
"""

import functools
import importlib.util
import logging
import os
import shutil

EMPTY = 2**30
"""The position of an empty slot of a cache: later than any query, so it is neither seen nor a candidate."""


@functools.cache
def usable(what: str) -> bool:
    """Say whether Triton can run `what` on this machine's GPU, in kernels; the log says so, once."""
    log = logging.getLogger(__name__)
    if importlib.util.find_spec("triton") is None:
        reason = "triton is not installed"
    elif not any((os.environ.get("CC"), shutil.which("gcc"), shutil.which("clang"))):
        reason = "triton needs a C compiler (CC, gcc, clang)"
    else:
        log.info("%s runs in fused kernels on this GPU", what)
        return True
    log.warning("%s runs in plain torch on this GPU, which is slower: %s", what, reason)
    return False
