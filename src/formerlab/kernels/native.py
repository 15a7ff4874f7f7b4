"""What makes a CPU fast: kernels in C++, compiled at first use and kept in the user's cache, and malloc's settings.

All of it is optional: without a compiler, or a folder to write to, slower code in plain torch runs.
"""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
from pathlib import Path

import torch

from formerlab.files import replacing

TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
"""What kernels take, and how C++ calls it (`bfloat16.h`)."""
_AVX2 = ["-mavx2", "-mfma"]
_VECTORS = {"AVX2": _AVX2, "AVX512": [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]}
"""Compiler options for the instructions that torch found here; a cache may be shared with processors that lack them."""

_MALLOC = {-1: 2**31 - 1, -2: 2**24, -8: 1}
"""glibc's M_TRIM_THRESHOLD, M_TOP_PAD (bytes) and M_ARENA_MAX."""
_MMAP_THRESHOLD = -3


def keep_memory(largest: int = 2**30) -> None:
    """Tell malloc to keep memory that is freed, where it is glibc's, in blocks of up to `largest` bytes.

    By itself it gives every large tensor back to the system, and the next one pays for fresh pages, which takes a tenth
    to a sixth of a training step on a CPU. Training, whose tensors have the same sizes in every step, holds a few
    percent more for it. Where sizes vary, as from policy to policy, what is kept fits nothing and the heap grows
    without end (18 GB in a sweep over a released model, 1 GB without): there larger blocks should go back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, largest):  # an older glibc takes no more than half of a heap
            mallopt(_MMAP_THRESHOLD, 2**25)
        for setting, value in _MALLOC.items():
            mallopt(setting, value)


@functools.cache
def library(file: str, what: str) -> ctypes.CDLL | None:
    """Return the library compiled from a C++ file of this folder, or None; the log says how `what` is done."""
    parts = (Path(__file__).with_name(part).read_text(encoding="utf-8") for part in ("bfloat16.h", file))
    made = compiled(file.removesuffix(".cpp"), "".join(parts))
    logging.getLogger(__name__).info("%s: %s", what, "plain torch" if made is None else "native kernel")
    return made


def compiled(name: str, source: str) -> ctypes.CDLL | None:
    """Return the library compiled from C++ source, or None; the log says why."""
    log = logging.getLogger(__name__)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        log.warning("%s: no C++ compiler found (CXX, c++, g++, clang++), going on without a native kernel", name)
        return None
    vectors = _VECTORS.get(torch.backends.cpu.get_cpu_capability(), [])
    command = [compiler, "-x", "c++", "-std=c++17", "-O3", *vectors, "-fopenmp", "-shared", "-fPIC", "-o"]
    digest = hashlib.sha256("\n".join([source, *command]).encode()).hexdigest()[:16]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        library = cache / "formerlab" / f"{name}-{digest}.so"
        if not library.exists():
            with replacing(library) as temporary:
                command += [str(temporary), "-"]
                subprocess.run(command, input=source, text=True, capture_output=True, check=True, timeout=120)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        log.warning("%s: going on without a native kernel (%s)", name, reason)
        return None


def kernel_path() -> str:
    """Return what decides the bits of a CPU beside the code: native kernels or plain ones, and the instruction set."""
    made = compiled("probe", 'extern "C" int probe() { return 0; }')
    return f"{'plain' if made is None else 'native'}, {torch.backends.cpu.get_cpu_capability()}"
