"""When a stage must stop before it is done: a signal, or its time is nearly up."""

import signal
import time
from types import FrameType, TracebackType

from formerlab.errors import UserError


class StopRequest:
    """Says why to stop, or nothing while there is no reason.

    Inside a `with` block SIGTERM (a cluster's time limit, scancel) and SIGINT (Ctrl-C) are noted and acted on between
    two steps; a second Ctrl-C interrupts at once. `time_limit_s` counts from the creation of this object, and
    `margin_s` before it the stage is asked to stop, so that it can save its work.

    Raises
    ------
    UserError
        Where the margin leaves none of the time limit.
    """

    def __init__(self, time_limit_s: float | None = None, margin_s: float = 30.0) -> None:
        if time_limit_s is not None and time_limit_s <= margin_s:
            raise UserError(
                f"a time limit of {time_limit_s:g} s leaves no time before its margin of {margin_s:g} s; "
                "raise --time-limit or lower --margin"
            )
        self._end = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._margin_s = margin_s
        self._limit_s = time_limit_s
        self._signal: str | None = None

    def __enter__(self) -> "StopRequest":
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._handlers = {number: signal.signal(number, self._note) or signal.SIG_DFL for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __call__(self) -> str | None:
        """Return the reason to stop now, if there is one."""
        if self._signal is not None:
            return self._signal
        if self._end is not None and time.monotonic() >= self._end - self._margin_s:
            return f"the time limit of {self._limit_s:g} s is near"
        return None

    def leave(self, seconds: float) -> None:
        """Stop at least so long before the limit, whatever the margin."""
        self._margin_s = max(self._margin_s, seconds)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
