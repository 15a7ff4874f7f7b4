"""Work on torch's threads."""

import threading
import time

import pytest

from formerlab.kernels import parallel_for as team


@pytest.fixture(params=["torch's threads", "threads of one's own"])
def way(request, monkeypatch):
    if request.param != "torch's threads":
        monkeypatch.setattr(team, "_parallel", lambda: None)
    elif team._parallel() is None:
        pytest.skip("torch brings no GNU OpenMP here")
    return request.param


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_works_once(way, threads):
    seen = []

    def work():
        time.sleep(0.02)
        seen.append(threading.get_ident())

    team.together(work, threads)
    assert len(seen) == len(set(seen)) == threads
    assert threading.get_ident() in seen


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_reaches_the_caller_after_all_have_ended(way, threads):
    ended = []

    def work():
        if threading.get_ident() == threading.main_thread().ident:
            raise KeyError("here")
        time.sleep(0.02)
        ended.append(True)

    with pytest.raises(KeyError, match="here"):
        team.together(work, threads)
    assert len(ended) == threads - 1


def test_an_error_of_a_helper_reaches_the_caller(way):
    def work():
        if threading.get_ident() != threading.main_thread().ident:
            raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        team.together(work, 2)
