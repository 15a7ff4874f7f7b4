"""Reasons to stop: signals and the time limit."""

import os
import signal

import pytest

from formerlab.errors import UserError
from formerlab.training import runtime as module
from formerlab.training.runtime import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_recorded_and_handlers_are_restored(number):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with StopRequest() as stop:
        assert stop() is None
        os.kill(os.getpid(), number)
        assert stop() == number.name
        assert stop() == number.name
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@pytest.mark.parametrize(("raised", "margin"), [((), 30), ((50, 10), 50)])
def test_a_time_limit_stops_early_by_its_margin(raised, margin, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    stop = StopRequest(time_limit_s=100, margin_s=30)
    for seconds in raised:
        stop.raise_margin(seconds)
    now += 99.9 - margin
    assert stop() is None
    now += 0.1
    assert stop() == "the time limit of 100 s is near"


@pytest.mark.parametrize(("limit", "margin"), [(30, 30), (0, 0)])
def test_a_time_limit_within_its_margin_is_refused(limit, margin):
    """Such a run would always stop before its first step."""
    with pytest.raises(UserError, match=f"time limit of {limit} s is not longer than its margin of {margin} s"):
        StopRequest(limit, margin)
