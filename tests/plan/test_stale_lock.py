"""A lock of Snakemake is taken away when, and only when, no Snakemake lives in the folder."""

import socket
import subprocess
import sys

import pytest

from formerlab.plan.attempts import take_away_stale

HOLD = (
    "from pathlib import Path; from formerlab.plan.attempts import take_away_stale\n"
    "held = take_away_stale(Path()); print(1, flush=True); input()"
)


@pytest.mark.parametrize(("owner", "stays"), [(socket.gethostname(), False), ("another-machine", True), (None, True)])
def test_a_lock_goes_where_this_machine_left_it(tmp_path, owner, stays):
    (tmp_path / "locks").mkdir()
    lock = tmp_path / "locks/0.input.lock"
    lock.touch()
    if owner:
        (tmp_path / "lives").write_text(owner)
    take_away_stale(tmp_path)
    assert lock.exists() == stays


def test_a_lock_stays_while_its_owner_lives_and_goes_after_a_kill(tmp_path):
    words = [sys.executable, "-c", HOLD]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        lock = tmp_path / "locks/0.input.lock"
        lock.parent.mkdir()
        lock.touch()
        take_away_stale(tmp_path)
        assert lock.exists()
        owner.kill()
    take_away_stale(tmp_path)
    assert not lock.exists()
