"""Runtime settings of a stage, and requests to stop at a signal or before the time limit."""

import signal
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from formerlab.errors import UserError

SHARDED = "FORMERLAB_SHARDED"
"""Environment variable that is 1 in processes with sharded tensors (processes.py)."""


@dataclass(frozen=True)
class RuntimeConfig:
    """Settings that do not change the results of a run, except for `threads`, `device` and `deterministic`."""

    threads: int = 1
    device: str = "cpu"
    time_limit_s: float | None = None
    """Time limit, from the creation of the stage's `StopRequest`; None means no limit."""
    margin_s: float = 30.0
    """Time before the limit at which the stage stops; the stage raises it to the time of a step and two saves."""
    checkpoint_seconds: float = 60.0
    """Minimum time between two checkpoints; 0 saves after every step."""
    startup_s: float = 0.0
    """Time from the start of the process to the start of the stage, mostly imports."""
    replace: bool = False
    """Overwrite the results of another run in the folder."""
    code_hash: str = ""
    """Hash of the code that the run depends on."""
    deterministic: bool = False
    """Use deterministic, slower GPU kernels; torch raises an error for operations that have no deterministic kernel."""
    keep_optimizer: bool = False
    """Write the final state of the optimizer to optimizer.pt, for child runs with growth.optimizer=carry."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Additional entries of the record."""


class StopRequest:
    """A callable that returns a reason to stop, or None.

    In a `with` block, SIGTERM (a cluster's time limit, scancel) and SIGINT (Ctrl-C) are reasons to stop; a second
    Ctrl-C interrupts immediately. The time limit counts from the creation of this object and is a reason to
    stop from `margin_s` seconds before its end. Raises UserError if the margin is not shorter than the time limit.
    """

    def __init__(self, time_limit_s: float | None = None, margin_s: float = 30.0) -> None:
        if time_limit_s is not None and time_limit_s <= margin_s:
            raise UserError(
                f"a time limit of {time_limit_s:g} s is not longer than its margin of {margin_s:g} s; "
                "raise --time-limit or lower --margin"
            )
        self._began, self._limit_s, self._margin_s = time.monotonic(), time_limit_s, margin_s
        self._signal: str | None = None

    def __enter__(self) -> "StopRequest":
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._handlers = {number: signal.signal(number, self._record) or signal.SIG_DFL for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __call__(self) -> str | None:
        limit = self._limit_s
        if self._signal is None and limit is not None and time.monotonic() - self._began >= limit - self._margin_s:
            return f"the time limit of {limit:g} s is near"
        return self._signal

    def raise_margin(self, seconds: float) -> None:
        """Set the margin to at least this time."""
        self._margin_s = max(self._margin_s, seconds)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
