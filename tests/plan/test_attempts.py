"""Which jobs a cluster is to try again, and with how much memory, by the notes that the last attempts left."""

import pytest

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import write_json
from formerlab.plan.attempts import Attempts, killed_for_memory
from formerlab.results.notes import noted

SCONTROL = """#!/bin/sh
case "$5" in
    1) echo "JobId=1 JobState=OUT_OF_MEMORY Reason=OutOfMemory DerivedExitCode=0:0 ExitCode=0:125" ;;
    2) echo "JobId=2 JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=0:0 ExitCode=0:9" ;;
    3) echo "JobId=3 JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=1:0 ExitCode=1:0" ;;
    4) echo "JobId=4 JobState=TIMEOUT Reason=TimeLimit DerivedExitCode=0:9 ExitCode=0:15" ;;
    5) echo "JobId=5 JobState=NODE_FAIL Reason=NodeDown DerivedExitCode=0:0 ExitCode=0:9" ;;
    6) echo "JobId=6 JobState=FAILED Reason=NonZeroExitCode DerivedExitCode=0:9 ExitCode=1:0" ;;
    *) exit 1 ;;
esac
"""
"""As Slurm was seen to speak of ended jobs: the sixth is a step that used more than its job's memory."""
KILLED = {1: True, 2: True, 3: False, 4: False, 5: False, 6: True, 99: False}


@pytest.fixture(autouse=True)
def scontrol(tmp_path, monkeypatch):
    """Slurm's scontrol as it was seen to speak of ended jobs."""
    path = tmp_path / "bin/scontrol"
    path.parent.mkdir()
    path.write_text(SCONTROL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")


@pytest.fixture
def attempts(tmp_path):
    return Attempts(lambda stage, name: tmp_path / name)


def end(folder, error, monkeypatch, job):
    """Let an attempt, the Slurm job of that number, end for an error; or be killed, where that is None."""
    monkeypatch.setenv("SLURM_JOB_ID", str(job))
    if error is None:
        note = {"state": "running", "pid": job, "host": "node", "slurm_job": str(job)}
        write_json(folder / ".train.state.json", note)
        return
    with pytest.raises(type(error)), noted("train", folder):
        raise error


@pytest.mark.parametrize("job", KILLED)
def test_slurm_says_what_killed_a_job(job):
    assert killed_for_memory(str(job)) is KILLED[job]


def test_memory_grows_with_every_kill_for_it_and_with_nothing_else(attempts, tmp_path, monkeypatch):
    ends = (None, 1), (StoppedEarly("saved"), 7), (None, 4), (ValueError("crash"), 3), (None, 2), (UserError("no"), 8)
    grown = [attempts.memory_kills("train", "run", 1)]
    for attempt, (error, job) in enumerate(ends, start=2):
        end(tmp_path / "run", error, monkeypatch, job)
        grown.append(attempts.memory_kills("train", "run", attempt))
        assert attempts.memory_kills("train", "run", attempt) == grown[-1]  # asked for twice, counted once
    assert grown == [0, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("error", "mistake"),
    [(UserError("a: b"), True), (ValueError("b"), False), (StoppedEarly("c"), False), (None, False)],
)
def test_a_mistake_is_one_that_a_person_mends(attempts, tmp_path, monkeypatch, error, mistake):
    attempts.memory_kills("train", "run", 1)
    end(tmp_path / "run", error, monkeypatch, 3)
    assert attempts.was_a_mistake("train", "run") is mistake


def test_a_note_from_before_says_nothing_of_an_attempt(attempts, tmp_path, monkeypatch):
    """An attempt that did not come as far as its stage leaves the note of another."""
    end(tmp_path / "run", UserError("long ago"), monkeypatch, 3)
    attempts.memory_kills("train", "run", 1)
    assert not attempts.was_a_mistake("train", "run")
    assert not attempts.was_a_mistake("train", "another")
