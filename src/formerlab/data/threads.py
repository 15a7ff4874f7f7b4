"""Threads that map a function over a stream, in order and in constant memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from formerlab.files import variable

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `function(item)` in the order of the items, of which at most two a core wait or are worked on.

    It is for work outside Python's lock: tokenising, decoding, hashing. The cores are those this process may use, or as
    many as `RAYON_NUM_THREADS` says, which the tokenizers library reads too.
    """
    told = variable("RAYON_NUM_THREADS") or ""  # rayon ignores what is no number, as is done here
    cores = (int(told) if told.isdecimal() else 0) or len(os.sched_getaffinity(0))
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
