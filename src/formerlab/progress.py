"""Progress on stderr with tqdm: one rewritten line on a terminal, and a line every few seconds in a log."""

import sys
from contextlib import suppress
from typing import Any, TextIO

from tqdm import tqdm


class Progress:
    """Show progress, speed and time left: `train a/b/seed0  step 3/9, loss 4  0.50 step/s  left 00:12`.

    Use it as a context manager. The time left follows from the mean speed since `start`.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        *,
        unit: str = "step",
        start: int = 0,
        scale: bool = False,
        delay: float = 0,
    ) -> None:
        """Count from `start`, for example of resumed work, up to `total` units (None: unknown).

        `scale` writes 12345 as 12.3k. Nothing is shown for work that takes less than `delay` seconds.
        """
        terminal = sys.stderr.isatty()
        pause = 0.2 if terminal else 5.0
        done, left = (f"{unit} {{n_fmt}}/{{total_fmt}}", "  left {remaining}") if total else (f"{{n_fmt}} {unit}", "")
        self._bar: tqdm[Any] = _Bar(
            total=total,
            desc=label,
            unit=f" {unit}",
            unit_scale=scale,
            initial=start,
            file=sys.stderr if terminal else LogWriter(sys.stderr),
            mininterval=pause,
            miniters=0,
            smoothing=0,
            delay=pause,
            dynamic_ncols=terminal,
            bar_format=f"{{desc}}  {done}{{postfix}} {{rate_noinv_fmt}}{left}" + "{bar:0}" * terminal,  # cut to fit
        )
        self._bar.delay = delay  # the constructor has a longer delay, so that tqdm does not print the state 0

    def update(self, step: int, **fields: float | str) -> None:
        """Set the number of finished units. A field `x_per_s` is shown as `12.3k x/s`, other fields as `name value`."""
        self.advance(step - int(self._bar.n), **fields)

    def advance(self, units: int = 1, **fields: float | str) -> None:
        """Add to the number of finished units."""
        self._bar.set_postfix_str(", ".join(_field_text(*field) for field in fields.items()), refresh=False)
        self._bar.update(units)

    def reach(self, step: int) -> None:
        """Set the number of finished units; the speed excludes the new units."""
        self._bar.initial += step - int(self._bar.n)
        self.update(step)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        """Show the last state and end the line."""
        self._bar.close()


class _Bar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no monitor thread


class LogWriter:
    """A log file for tqdm: each new state becomes a line, and repeated lines are skipped.

    Closed pipes are ignored, because a cluster may end the `tee` of a job before the job saves its work.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._last = file, ""

    def write(self, text: str) -> None:
        """Write a text if it is a new line."""
        line = text.strip()
        if line not in ("", self._last):
            with suppress(BrokenPipeError):
                self._file.write(f"{line}\n")
            self._last = line

    def flush(self) -> None:
        """Flush the file."""
        with suppress(BrokenPipeError):
            self._file.flush()


def _field_text(name: str, value: float | str) -> str:
    if name.endswith("_per_s"):
        return f"{short(float(value))} {name.removesuffix('_per_s').replace('_', ' ')}/s"
    return f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:.4g}'}"


def short(value: float) -> str:
    """Format a number with three digits and a metric suffix: 12345 becomes 12.3k."""
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def duration(hours: float) -> str:
    """Format a duration with a suitable unit: 45 s, 12 min, 3.4 h, 19 days."""
    for limit, unit, size in ((1.5 / 60, "s", 1 / 3600), (1.5, "min", 1 / 60), (72, "h", 1)):
        if hours < limit:
            return f"{hours / size:.{int(unit == 'h')}f} {unit}"
    return f"{hours / 24:,.0f} days"
