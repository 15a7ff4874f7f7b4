"""Map a function over an iterator in threads, in order and in constant memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from formerlab.files import variable

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `function(item)` in the order of the items, with at most two pending items per thread.

    Use it for work that releases the GIL: tokenising, decoding, hashing. The number of threads is the environment
    variable `RAYON_NUM_THREADS`, as in the tokenizers library; without it, the number of available cores.
    """
    limit = variable("RAYON_NUM_THREADS") or ""  # a value that is not a number is ignored, as in rayon
    cores = (int(limit) if limit.isdecimal() else 0) or len(os.sched_getaffinity(0))
    threads, pending = ThreadPoolExecutor(cores), deque[Future[Result]]()
    try:
        for item in items:
            pending.append(threads.submit(function, item))
            if len(pending) >= 2 * cores:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
