"""Compile C++ kernels for CPUs into the user's cache folder at first use, and configure malloc.

Without a compiler or a writable folder, plain torch replaces the kernels.
"""

import ctypes
import functools
import hashlib
import logging
import os
import subprocess
from pathlib import Path

import torch

from formerlab.files import replacing
from formerlab.kernels import COMPILERS, find_compiler

TYPES = {torch.float32: "float", torch.bfloat16: "bfloat16"}
"""The dtypes of the kernels and their names in C++ (`bfloat16.h`)."""
_AVX2 = ["-mavx2", "-mfma"]
_VECTOR_OPTIONS = {"AVX2": _AVX2, "AVX512": [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]}
"""Compiler options by torch's name of the instruction set."""
_MALLOC_OPTIONS = {-1: 2**31 - 1, -2: 2**24, -8: 1}
"""Values of glibc's M_TRIM_THRESHOLD (bytes), M_TOP_PAD (bytes) and M_ARENA_MAX."""
_MMAP_THRESHOLD = -3


def keep_memory(largest: int = 2**30) -> None:
    """Configure glibc's malloc to reuse freed blocks of up to `largest` bytes instead of returning them to the system.

    By default every large tensor needs fresh pages, and mapping them takes 10 to 16 % of a CPU training step. Training
    allocates the same sizes at every step, so it needs only a few percent more memory. With varying sizes, as in a
    sweep over policies, freed blocks do not fit and the heap grows (18 GB instead of 1 GB for a released model); use a
    smaller `largest` there.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_MMAP_THRESHOLD, largest):  # older versions of glibc have a lower limit
            mallopt(_MMAP_THRESHOLD, 2**25)
        for setting, value in _MALLOC_OPTIONS.items():
            mallopt(setting, value)


@functools.cache
def load_library(file: str, feature: str) -> ctypes.CDLL | None:
    """Compile a C++ file of this folder; return the library, or None. Logs the implementation of `feature`."""
    sources = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("bfloat16.h", file))
    library = compile_library(file.removesuffix(".cpp"), "".join(sources))
    logging.getLogger(__name__).info("%s: %s", feature, "plain torch" if library is None else "native kernel")
    return library


def compile_library(name: str, source: str) -> ctypes.CDLL | None:
    """Compile C++ source and return the library. If compilation fails, log the reason and return None.

    The file name contains a hash of source and options, so machines can share a cache folder.
    """
    log = logging.getLogger(__name__)
    compiler_path = find_compiler()
    if compiler_path is None:
        log.warning("%s: no C++ compiler found (tried %s); plain torch replaces the native kernel", name, COMPILERS)
        return None
    vector_options = _VECTOR_OPTIONS.get(torch.backends.cpu.get_cpu_capability(), [])
    command = [compiler_path, "-x", "c++", "-std=c++17", "-O3", *vector_options, "-fopenmp", "-shared", "-fPIC", "-o"]
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
        log.warning("%s: plain torch replaces the native kernel (%s)", name, reason)
        return None


def kernel_implementation() -> str:
    """Return "native" or "plain" (without a compiler) and the instruction set, such as "native, AVX2".

    Both affect the last bits of results on a CPU.
    """
    library = compile_library("probe", 'extern "C" int probe() { return 0; }')
    return f"{'plain' if library is None else 'native'}, {torch.backends.cpu.get_cpu_capability()}"
