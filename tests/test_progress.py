import io
import sys

import pytest
import tqdm.std

from formerlab.progress import Progress, short


class Unread(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(tqdm.std, "time", lambda: Clock.now)
    return Clock


def test_a_line_is_printed_at_most_every_five_seconds_and_at_the_end(clock, capsys):
    with Progress(10, "train a/b/seed0") as progress:
        for step in range(1, 11):
            clock.now += 2
            progress.update(step, loss=4.12345 / step)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("step ")[1].split(",")[0] for line in lines] == ["3/10", "6/10", "9/10", "10/10"]
    assert lines[0] == "train a/b/seed0  step 3/10, loss 1.374  0.50 step/s  left 00:14"
    assert lines[-1].endswith("left 00:00")


def test_progress_ignores_a_closed_pipe(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Unread())
    with Progress(10, "train x") as progress:
        for step in range(1, 11):
            clock.now += 10
            progress.update(step)


def test_the_speed_of_resumed_work_counts_only_new_items(clock, capsys):
    progress = Progress(1000, "train x", start=900)
    clock.now += 10
    progress.update(910, tokens_per_s=12345.0, loss=4.1234)
    assert capsys.readouterr().err == "train x  step 910/1000, 12.3k tokens/s, loss 4.123  1.00 step/s  left 01:30\n"


def test_resumed_items_count_for_the_progress_but_not_for_the_speed(clock, capsys):
    progress = Progress(1000, "prune x", unit="window")
    progress.reach(500)
    clock.now += 10
    progress.advance(10)
    assert capsys.readouterr().err.splitlines()[-1] == "prune x  window 510/1000  1.00 window/s  left 08:10"


def test_progress_of_unknown_total_shows_the_count(clock, capsys):
    with Progress(None, "tokenise text", unit="B", scale=True) as progress:
        clock.now += 10
        progress.advance(123456, shard="1/3")
    assert capsys.readouterr().err == "tokenise text  123k B, shard 1/3 12.3k B/s\n"


def test_a_terminal_line_is_rewritten_and_truncated(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "31")
    monkeypatch.setattr(tqdm.std, "_screen_shape_wrapper", lambda: lambda file: (31, 20))
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    with Progress(100, "a label that is long", unit="window") as progress:
        clock.now += 1
        progress.advance(50)
        progress.advance(25)
    first, second = (line.rstrip() for line in file.getvalue().split("\r")[1:])
    assert first == "a label that is long  window 50"
    assert second == "a label that is long  window 75"


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, "0.5"), (999, "999"), (12345, "12.3k"), (6e6, "6M"), (1.5e11, "150G"), (2e12, "2T")]
)
def test_short_numbers(value, text):
    assert short(value) == text
