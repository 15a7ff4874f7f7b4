"""Distinct GPUs for jobs side by side on one machine."""

import os
import subprocess
import sys

import pytest

from formerlab.commands.gpus import LOCKS, VISIBLE, own_gpus

HOLDER = f"""
import os, sys
from formerlab.commands.gpus import own_gpus
with own_gpus("cuda", int(sys.argv[1])):
    print(os.environ["{VISIBLE}"], flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def holder(count=1, visible="0,3"):
        environment = {key: value for key, value in os.environ.items() if key not in ("SLURM_JOB_ID", "RANK")}
        environment |= {LOCKS: str(tmp_path), VISIBLE: visible}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [sys.executable, "-c", HOLDER, str(count)]
        started.append(subprocess.Popen(words, env=environment, text=True, **pipes))
        return started[-1]

    yield holder
    for process in started:
        process.kill()
        process.communicate()


def test_jobs_side_by_side_have_distinct_gpus_and_the_third_waits(start):
    first, second = start(), start()
    assert {first.stdout.readline(), second.stdout.readline()} == {"0\n", "3\n"}
    third = start()
    assert third.stderr.readline() == "waiting for 1 of the GPUs 0, 3: other jobs have them\n"
    second.kill()
    assert third.stdout.readline() in ("0\n", "3\n")


def test_a_job_of_two_gets_both_or_none(start):
    one = start()
    free = {"0", "3"} - {one.stdout.readline().strip()}
    both = start(2)
    assert both.stderr.readline().startswith("waiting for 2")
    another = start()
    assert another.stdout.readline().strip() in free  # the one that waits holds none
    for process in (one, another):
        process.communicate("\n")
    assert both.stdout.readline() == "0,3\n"


@pytest.mark.parametrize(("device", "variable"), [("cpu", None), ("cuda", "SLURM_JOB_ID"), ("cuda", "RANK")])
def test_who_assigns_gpus_already_is_left_alone(device, variable, tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "RANK", VISIBLE):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv(LOCKS, str(tmp_path))
    with own_gpus(device):
        assert VISIBLE not in os.environ
    assert not list(tmp_path.iterdir())
