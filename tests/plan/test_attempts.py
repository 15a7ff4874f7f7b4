"""Retries of cluster jobs, their memory, and removal of stale locks."""

import os
import socket
import subprocess
import sys

import pytest

from formerlab.errors import StoppedEarly, UserError
from formerlab.files import write_json
from formerlab.plan.attempts import Attempts, already_running, killed_for_memory, remove_stale_locks
from formerlab.results.notes import stage_note

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
"""Output of Slurm for ended jobs, as observed. In job 6 a step used more than the memory of its job."""
NOTE = {"state": "running", "pid": 7, "host": "node"}
KILLED = {1: True, 2: True, 3: False, 4: False, 5: False, 6: True, 99: False}


@pytest.fixture(autouse=True)
def scontrol(tmp_path, monkeypatch):
    """A fake scontrol that prints observed output."""
    path = tmp_path / "bin/scontrol"
    path.parent.mkdir()
    path.write_text(SCONTROL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    return path.parent


@pytest.fixture
def attempts(tmp_path):
    return Attempts(lambda stage, name: tmp_path / name)


def end(folder, error, monkeypatch, job, stage="train"):
    """End the attempt of this Slurm job with an error, or kill it if `error` is None."""
    monkeypatch.setenv("SLURM_JOB_ID", str(job))
    if error is None:
        write_json(folder / f".{stage}.state.json", NOTE | {"pid": job, "slurm_job": str(job)})
        return
    with pytest.raises(type(error)), stage_note(stage, folder):
        raise error


@pytest.mark.parametrize("job", KILLED)
def test_out_of_memory_kills_are_recognised(job):
    assert killed_for_memory(str(job)) is KILLED[job]


def test_only_out_of_memory_kills_are_counted(attempts, tmp_path, monkeypatch):
    ends = (None, 1), (StoppedEarly("saved"), 7), (None, 4), (ValueError("crash"), 3), (None, 2), (UserError("no"), 8)
    grown = [attempts.memory_kills("train", "run", 1)]
    for attempt, (error, job) in enumerate(ends, start=2):
        end(tmp_path / "run", error, monkeypatch, job)
        grown.append(attempts.memory_kills("train", "run", attempt))
        assert attempts.memory_kills("train", "run", attempt) == grown[-1]  # a repeated call counts once
    assert grown == [0, 1, 1, 1, 1, 2, 2]


def should_retry(attempts, folder, monkeypatch, *ends, stage="train"):
    """Return the decision after each attempt. An attempt raises an error, is killed (None) or leaves no note ("")."""
    decisions = []
    for attempt, error in enumerate(ends, start=1):
        attempts.memory_kills(stage, "run", attempt)
        if error != "":
            end(folder, error, monkeypatch, 10 + attempt, stage)
        decisions.append(attempts.should_retry(stage, "run", attempt))
        assert attempts.should_retry(stage, "run", attempt) == decisions[-1]  # a repeated call counts once
    return decisions


CRASH, MISTAKE = ValueError("crash"), UserError("a: b")
SAVED, *LATER = (StoppedEarly("saved", [step]) for step in range(9))


@pytest.mark.parametrize(
    ("ends", "decisions"),
    [
        ([SAVED, *LATER], [True] * 9),
        ([SAVED] * 5, [True, True, True, True, False]),  # every job reaches its time limit before its first step ends
        ([SAVED, SAVED, CRASH, SAVED, SAVED], [True, True, True, True, False]),
        ([SAVED, SAVED, SAVED, SAVED, LATER[0], LATER[0]], [True] * 6),
        ([CRASH, None, CRASH, None], [True, True, True, False]),
        ([CRASH, CRASH, CRASH, SAVED, CRASH], [True] * 5),
        ([CRASH, MISTAKE], [True, False]),
        ([SAVED, ""], [True, False]),
        ([""], [False]),
    ],
)
def test_saved_work_continues_and_a_crash_is_retried_three_times(attempts, tmp_path, monkeypatch, ends, decisions):
    end(tmp_path / "run", SAVED, monkeypatch, 3)  # the note of an earlier call does not count as an attempt
    assert should_retry(attempts, tmp_path / "run", monkeypatch, *ends) == decisions


def test_a_stage_that_cannot_resume_is_retried_three_times(attempts, tmp_path, monkeypatch):
    ends = [KeyboardInterrupt()] * 4  # as if the job had reached its time limit
    assert should_retry(attempts, tmp_path / "run", monkeypatch, *ends, stage="speed") == [True, True, True, False]


@pytest.mark.parametrize("job", ["", "77"])
def test_a_job_that_another_process_runs_is_not_retried(attempts, tmp_path, monkeypatch, job):
    """The lock shows that another process runs the job, even if Slurm does not answer."""
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("PATH", str(tmp_path))
    attempts.memory_kills("train", "run", 1)
    with stage_note("train", tmp_path / "run"):
        assert not attempts.should_retry("train", "run", 1)


SQUEUE = """#!/bin/sh
echo "21|{root}|rule_train_wildcards_a_b_seed0"
echo "22|{root}|rule_exact"
echo "23|/elsewhere|rule_train_wildcards_a_c_seed0"
echo "24|/elsewhere|"
"""


@pytest.mark.parametrize(
    ("stage", "name", "note", "who"),
    [
        ("train", "a/b/seed0", None, "21"),
        ("exact", "claims", None, "22"),
        ("train", "a/c/seed0", None, None),
        ("train", "a/d/seed0", "24", "24"),
        ("train", "a/d/seed0", "25", None),
        ("flow", "a/b/seed0", None, None),
    ],
)
def test_pending_and_running_slurm_jobs_are_listed(tmp_path, scontrol, stage, name, note, who):
    (scontrol / "squeue").write_text(SQUEUE.format(root=tmp_path))
    (scontrol / "squeue").chmod(0o755)
    if note:
        write_json(tmp_path / name / f".{stage}.state.json", NOTE | {"slurm_job": note})
    message = already_running({(stage, name): None}, lambda stage, name: tmp_path / name, tmp_path)
    if who is None:
        assert message is None
    else:
        stop = f"Wait for it or stop it with `scancel {who}` (work is saved)"
        assert message.startswith(f"{stage} {name} is already running or queued: Slurm job {who}. {stop}")


def test_a_running_process_is_listed(tmp_path):
    with stage_note("train", tmp_path):
        message = already_running({("train", "x"): None, ("flow", "x"): None}, lambda stage, name: tmp_path, tmp_path)
    assert message.startswith(f"train x is already running or queued: process {os.getpid()} on ")


HOLDING_PROGRAM = (
    "from pathlib import Path; from formerlab.plan.attempts import remove_stale_locks\n"
    "held = remove_stale_locks(Path()); print(1, flush=True); input()"
)


@pytest.mark.parametrize(("owner", "stays"), [(socket.gethostname(), False), ("another-machine", True), (None, True)])
def test_only_locks_of_this_machine_are_removed(tmp_path, owner, stays):
    (tmp_path / "locks").mkdir()
    lock = tmp_path / "locks/0.input.lock"
    lock.touch()
    if owner:
        (tmp_path / "lives").write_text(owner)
    remove_stale_locks(tmp_path)
    assert lock.exists() == stays


def test_a_lock_stays_until_its_owner_is_killed(tmp_path):
    words = [sys.executable, "-c", HOLDING_PROGRAM]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        lock = tmp_path / "locks/0.input.lock"
        lock.parent.mkdir()
        lock.touch()
        remove_stale_locks(tmp_path)
        assert lock.exists()
        owner.kill()
    remove_stale_locks(tmp_path)
    assert not lock.exists()
