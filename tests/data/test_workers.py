"""Mapping over processes: order, bounded waiting, errors."""

import os

import pytest

from formerlab.data.workers import Workers
from formerlab.errors import UserError


def square(number):
    return number * number


def refuse(number):
    raise UserError(f"item {number} is wrong")


def die(number):
    os._exit(1)


@pytest.fixture(scope="module")
def workers():
    with Workers(2) as workers:
        yield workers


def test_results_come_in_order_and_little_is_read_ahead(workers):
    read = []

    def items():
        for number in range(40):
            read.append(number)
            yield number

    for received, result in enumerate(workers.map(square, items())):
        assert result == received * received
        assert len(read) <= received + 2 * workers.processes
    assert received == 39


def test_one_process_gives_the_same_lazily():
    with Workers(1) as alone:
        assert next(alone.map(square, iter(int, 1))) == 0  # an endless stream of zeros


def test_errors_of_workers_arrive_as_they_are(workers):
    with pytest.raises(UserError, match="item 3 is wrong"):
        list(workers.map(refuse, [3, 4]))
    assert list(workers.map(square, [5])) == [25]


def test_a_killed_worker_is_reported():
    with Workers(2) as workers, pytest.raises(UserError, match="lack of memory"):
        list(workers.map(die, range(4)))
