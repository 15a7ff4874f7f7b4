"""Mapping over threads: order, limited number of pending items, errors."""

from itertools import count
from threading import active_count

import pytest

from formerlab.data.threads import in_threads
from formerlab.errors import UserError


@pytest.mark.parametrize("cores", [1, 3])
def test_results_are_in_order_and_few_items_are_pending(cores, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", str(cores))
    read = []

    def items():
        for number in range(40):
            read.append(number)
            yield number

    for received, result in enumerate(in_threads(lambda number: number * number, items())):
        assert result == received * received
        assert len(read) <= received + 2 * cores
    assert received == 39


def refuse(number):
    if number == 3:
        raise UserError(f"item {number} is wrong")


def test_an_error_is_raised_unchanged_and_stops_all_threads():
    threads = active_count()
    with pytest.raises(UserError, match="item 3 is wrong"):
        list(in_threads(refuse, count()))
    assert active_count() == threads


@pytest.mark.parametrize("value", ["", " ", "0", "many", "-2"])
def test_an_invalid_thread_count_is_ignored(value, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", value)
    assert list(in_threads(abs, [-1, -2])) == [1, 2]
