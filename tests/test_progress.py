import io

import pytest

from formerlab.progress import Progress, duration, short


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_at_most_every_five_seconds_and_at_the_end():
    clock, file = Clock(), io.StringIO()
    with Progress(10, "train a/b/seed0", file=file, clock=clock) as progress:
        for step in range(1, 11):
            clock.now += 2
            progress.update(step, loss=4.12345 / step)
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 3/10", "step 6/10", "step 9/10", "step 10/10"]
    assert lines[0] == "train a/b/seed0  step 3/10  loss 1.374  0.5 steps/s  left 0:14"
    assert lines[-1].endswith("left 0:00")


def test_resumed_work_is_timed_from_where_it_continues():
    clock, file = Clock(), io.StringIO()
    progress = Progress(1000, "train x", start=900, file=file, clock=clock)
    clock.now += 10
    progress.update(910, tokens_per_s=12345.0, loss=4.1234)
    assert file.getvalue() == "train x  step 910/1000  12.3k tokens/s  loss 4.123  left 1:30\n"


def test_a_terminal_line_is_rewritten_and_fits(monkeypatch):
    monkeypatch.setenv("COLUMNS", "31")
    clock, file = Clock(), Terminal()
    with Progress(100, "a label that is long", unit="window", file=file, clock=clock) as progress:
        clock.now += 1
        progress.advance(50)
        progress.advance(25)
    first, second, end = file.getvalue().split("\x1b[K")
    assert first == "\ra label that is long  window 5"
    assert second == "\ra label that is long  window 7"
    assert end == "\n"


def test_work_that_failed_at_once_prints_nothing():
    for file in (io.StringIO(), Terminal()):
        with pytest.raises(KeyboardInterrupt), Progress(5, "x", file=file):
            raise KeyboardInterrupt
        assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (999, "999"), (12345, "12.3k"), (6e6, "6M"), (1.5e11, "150G"), (2e12, "2T")]
)
def test_short_numbers(value, text):
    assert short(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (35.4, "0:35"), (725, "12:05"), (11232, "3:07:12")])
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("unit", "units"), [("step", "steps"), ("policy", "policies"), ("batch", "batches")])
def test_the_speed_is_told_in_the_plural(unit, units):
    clock, file = Clock(), io.StringIO()
    with Progress(4, "x", unit=unit, file=file, clock=clock) as progress:
        clock.now += 4
        progress.advance(2)
    assert f"  0.5 {units}/s  " in file.getvalue()
