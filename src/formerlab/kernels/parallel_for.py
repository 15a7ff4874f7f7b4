"""Work on the threads that torch itself computes with.

torch's helpers wait busily for some milliseconds after every operation. Threads of one's own would share the processors
with them, which doubled the time of a kernel of 4 ms; those same helpers, called from here, are awake already. Where
torch brings no GNU OpenMP, threads of one's own have to do.
"""

import ctypes
import functools
from collections.abc import Callable
from threading import Thread

import torch  # its OpenMP has to be the one that is found

_Member = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def together(work: Callable[[], None], threads: int) -> None:
    """Call `work` once in each of so many threads, this one among them; wait for all. Raises what one of them raised.

    It pays where `work` lets go of the interpreter's lock.
    """
    errors: list[BaseException] = []

    def member(_: object = None) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    if threads == 1:
        work()
    elif (parallel := _parallel()) is not None:
        parallel(_Member(member), None, threads, 0)
    else:
        helpers = [Thread(target=member) for _ in range(threads - 1)]
        for helper in helpers:
            helper.start()
        member()
        for helper in helpers:
            helper.join()
    if errors:
        raise errors[0]


@functools.cache
def _parallel() -> ctypes._CFuncPtr | None:
    """Return OpenMP's entry for a parallel region, out of the library that torch has loaded."""
    if "openmp" not in torch.__config__.parallel_info().lower():
        return None
    try:
        region = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        return None
    region.argtypes = [_Member, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return region
