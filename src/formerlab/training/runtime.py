"""How a run is carried out, and when it stops early: at a signal, or when its time is nearly up."""

import signal
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from formerlab.errors import UserError

SHARDED = "FORMERLAB_SHARDED"
"""Variable that is 1 in processes which split the tensors of their run (processes.py)."""


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings that do not change a run's results, given the number of threads and the kind of device."""

    threads: int = 1
    device: str = "cpu"
    time_limit_s: float | None = None
    margin_s: float = 30.0
    checkpoint_seconds: float = 60.0
    before_s: float = 0.0
    """Time from the start of the process to that of the stage: imports, mostly."""
    replace: bool = False
    """Train anew where the folder holds another run's results, which then are lost."""
    code_hash: str = ""
    """Hash of the code that the run depends on."""
    deterministic: bool = False
    """Let a GPU compute the same bits every time, with slower kernels; torch refuses operations that have none."""
    keep_optimizer: bool = False
    """Leave the optimizer's final state in optimizer.pt, for runs that grow from this one and carry it on."""
    said: dict[str, Any] = field(default_factory=dict)
    """What the record says beside what training knows."""


class StopRequest:
    """Says why to stop, or nothing while there is no reason.

    Inside a `with` block SIGTERM (a cluster's time limit, scancel) and SIGINT (Ctrl-C) are noted and acted on between
    two steps; a second Ctrl-C interrupts at once. `time_limit_s` counts from the creation of this object, and
    `margin_s` before it the stage is asked to stop, so that it can save its work.
    Raises UserError where the margin is as long as the time limit.
    """

    def __init__(self, time_limit_s: float | None = None, margin_s: float = 30.0) -> None:
        if time_limit_s is not None and time_limit_s <= margin_s:
            raise UserError(
                f"a time limit of {time_limit_s:g} s leaves no time before its margin of {margin_s:g} s; "
                "raise --time-limit or lower --margin"
            )
        self._began, self._limit_s, self._margin_s = time.monotonic(), time_limit_s, margin_s
        self._signal: str | None = None

    def __enter__(self) -> "StopRequest":
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._handlers = {number: signal.signal(number, self._note) or signal.SIG_DFL for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __call__(self) -> str | None:
        """Return the reason to stop now, if there is one."""
        limit = self._limit_s
        if self._signal is None and limit is not None and time.monotonic() - self._began >= limit - self._margin_s:
            return f"the time limit of {limit:g} s is near"
        return self._signal

    def leave(self, seconds: float) -> None:
        """Raise the margin to at least this time."""
        self._margin_s = max(self._margin_s, seconds)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
