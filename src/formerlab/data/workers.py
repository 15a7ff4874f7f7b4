"""Several processes that map a function over a stream, in order and in constant memory."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import TypeVar

from formerlab.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may use (a cluster job sees its own, not the node's)."""
    return len(os.sched_getaffinity(0))


class Workers:
    """`processes` processes; with one, everything happens in this one and no process is started."""

    def __init__(self, processes: int | None = None) -> None:
        """Prepare `processes` processes (default: one per core available); they start with the first work."""
        self.processes = processes or available_cores()
        self._executor: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `function(item)` in the order of the items; at most two items a process wait or are worked on.

        A result therefore does not depend on the number of processes. `function` must be importable by its name.
        """
        if self.processes == 1:
            yield from map(function, items)
            return
        pending: deque[Future[Result]] = deque()
        if self._executor is None:  # spawned, not forked: a fork of a process whose tokenizer has threads can hang
            spawn = get_context("spawn")
            self._executor = ProcessPoolExecutor(self.processes, mp_context=spawn, initializer=_start_worker)
        try:
            for item in items:
                pending.append(self._executor.submit(function, item))
                if len(pending) >= 2 * self.processes:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError("a worker process was killed, most often for lack of memory; use fewer processes") from None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the processes; work not begun is dropped."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent alone answers Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a process


def _end_with_parent() -> None:
    """End with the parent, even one that was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
