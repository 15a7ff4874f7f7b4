"""Native kernels: C++ of this package, compiled at first use and kept in the user's cache.

Nothing needs them. Whoever has no compiler, or no place to write, gets nothing here and a slower way elsewhere.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
from pathlib import Path

import torch

from formerlab.files import replacing

_VECTORS = {"AVX2": ["-mavx2", "-mfma"], "AVX512": ["-mavx2", "-mfma", "-mavx512f"]}
"""Options for what torch found this processor able to do; the cache may be shared with lesser ones."""


def compiled(name: str, source: str) -> ctypes.CDLL | None:
    """Return the library made of C++ source, or nothing; the log says why."""
    log = logging.getLogger(__name__)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    if compiler is None:
        log.warning("%s: no C++ compiler found (CXX, c++, g++, clang++), going on without a native kernel", name)
        return None
    vectors = _VECTORS.get(torch.backends.cpu.get_cpu_capability(), [])
    command = [compiler, "-x", "c++", "-std=c++17", "-O3", *vectors, "-fopenmp", "-shared", "-fPIC", "-o"]
    digest = hashlib.sha256("\n".join([source, *command]).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"{name}-{digest}.so"
        if not library.exists():
            with replacing(library) as temporary:
                command += [str(temporary), "-"]
                subprocess.run(command, input=source, text=True, capture_output=True, check=True, timeout=120)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0]
        log.warning("%s: going on without a native kernel (%s)", name, reason)
        return None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "formerlab"
