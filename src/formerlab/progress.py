"""Progress of long work on stderr: one line that is rewritten on a terminal, now and then a new line elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_REWRITES = 0.2


class Progress:
    """Print how far work is, how fast, and the time left: `train a/b/seed0  step 300/1000  loss 4.123  left 0:35`.

    Use it as a context manager; the last state is always printed. The time left assumes the mean speed since the
    start, so `start` must be the step from which resumed work continues.
    """

    def __init__(
        self,
        total: int,
        label: str,
        *,
        unit: str = "step",
        start: int = 0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count `total` units, of which `start` are done; `clock` returns seconds."""
        self.total, self.label, self.unit, self.start, self.step = total, label, unit, start, start
        self._file = sys.stderr if file is None else file
        self._terminal = self._file.isatty()
        self._clock = clock
        self._began = self._printed_at = clock()
        self._line = self._printed = ""

    def update(self, step: int, **fields: float | str) -> None:
        """Say that `step` units are done. A field `x_per_s` reads `12.3k x/s`, any other one `name value`."""
        now = self._clock()
        self.step = step
        self._line = self._describe(now, fields)
        pause = SECONDS_BETWEEN_REWRITES if self._terminal else SECONDS_BETWEEN_LINES
        if now - self._printed_at >= pause:
            self._print(now)

    def advance(self, units: int = 1, **fields: float | str) -> None:
        """Say that `units` more are done."""
        self.update(self.step + units, **fields)

    def close(self) -> None:
        """Print the last state if it was not, and end the line."""
        if self._line != self._printed:
            self._print(self._clock())
        if self._terminal and self._printed:
            self._file.write("\n")
            self._file.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _describe(self, now: float, fields: dict[str, float | str]) -> str:
        parts = [self.label, f"{self.unit} {self.step}/{self.total}"]
        parts += [field_text(name, value) for name, value in fields.items()]
        done, seconds = self.step - self.start, now - self._began
        if done > 0 and seconds > 0:
            if not any(name.endswith("_per_s") for name in fields):
                parts.append(f"{short(done / seconds)} {plural(self.unit)}/s")
            parts.append(f"left {duration((self.total - self.step) * seconds / done)}")
        return "  ".join(parts)

    def _print(self, now: float) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._file.write(f"\r{self._line[:width]}\x1b[K")
        else:
            self._file.write(self._line + "\n")
        self._file.flush()
        self._printed, self._printed_at = self._line, now


def field_text(name: str, value: float | str) -> str:
    """Return a field as it is shown: `loss 4.123`, `12.3k tokens/s`."""
    if name.endswith("_per_s"):
        return f"{short(float(value))} {name.removesuffix('_per_s').replace('_', ' ')}/s"
    return f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"


def plural(unit: str) -> str:
    """Return the plural of a unit: steps, policies, batches."""
    if unit.endswith("y"):
        return f"{unit[:-1]}ies"
    return f"{unit}es" if unit.endswith(("s", "x", "ch", "sh")) else f"{unit}s"


def short(value: float) -> str:
    """Return a number in three digits with a metric suffix: 12345 is 12.3k."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return seconds as 0:35, 12:05 or 3:07:12."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
