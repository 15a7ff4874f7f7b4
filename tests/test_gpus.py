"""Concurrent jobs on one machine get different GPUs, and torchrun gives its processes time to save."""

import argparse
import os
import subprocess
import sys

import pytest
from torch.distributed.launcher.api import LaunchConfig

from formerlab.commands.gpus import (
    JOBS_PER_GPU_VARIABLE,
    LOCKS_VARIABLE,
    VISIBLE_VARIABLE,
    locked_gpus,
    train_distributed,
)
from formerlab.errors import UserError

HOLDER = f"""
import os, sys
from formerlab.commands.gpus import locked_gpus
with locked_gpus("cuda", int(sys.argv[1])):
    print(os.environ["{VISIBLE_VARIABLE}"], flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def holder(count=1, visible="0,3", **variables):
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("SLURM_JOB_ID", "RANK", JOBS_PER_GPU_VARIABLE)
        }
        environment |= {LOCKS_VARIABLE: str(tmp_path), VISIBLE_VARIABLE: visible} | variables
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [sys.executable, "-c", HOLDER, str(count)]
        started.append(subprocess.Popen(words, env=environment, text=True, **pipes))
        return started[-1]

    yield holder
    for process in started:
        process.kill()
        process.communicate()


def test_concurrent_jobs_have_different_gpus_and_a_third_job_waits(start):
    first, second = start(), start()
    assert {first.stdout.readline(), second.stdout.readline()} == {"0\n", "3\n"}
    third = start()
    assert third.stderr.readline() == "waiting for free GPUs (1 needed): other jobs use 0, 3\n"
    second.kill()
    assert third.stdout.readline() in ("0\n", "3\n")


def test_small_jobs_share_gpus(start):
    jobs = [start(**{JOBS_PER_GPU_VARIABLE: "2"}) for _ in range(4)]
    assigned = [job.stdout.readline() for job in jobs]
    assert sorted(assigned) == ["0\n", "0\n", "3\n", "3\n"]
    fifth = start(**{JOBS_PER_GPU_VARIABLE: "2"})
    assert fifth.stderr.readline().startswith("waiting for free GPUs (1 needed)")
    jobs[0].kill()
    assert fifth.stdout.readline() == assigned[0]


@pytest.mark.parametrize(
    ("variable", "value", "gpus", "message"),
    [
        (JOBS_PER_GPU_VARIABLE, "0", 1, f"{JOBS_PER_GPU_VARIABLE}=0: set a number of jobs"),
        (VISIBLE_VARIABLE, None, 1, "torch finds no GPU on this machine; set device: cpu"),
        (VISIBLE_VARIABLE, "0", 4, r"gpus: 4, but only 1 are available \(0\); lower gpus"),
    ],
)
def test_jobs_that_can_never_start_are_refused(variable, value, gpus, message, lock_folder, monkeypatch):
    monkeypatch.delenv(variable, raising=False) if value is None else monkeypatch.setenv(variable, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UserError, match=message), locked_gpus("cuda", gpus):
        pass


def test_a_job_locks_both_gpus_or_none(start):
    one_gpu_job = start()
    free = {"0", "3"} - {one_gpu_job.stdout.readline().strip()}
    two_gpu_job = start(2)
    assert two_gpu_job.stderr.readline().startswith("waiting for free GPUs (2 needed)")
    third_job = start()
    assert third_job.stdout.readline().strip() in free  # the waiting job holds no lock
    for process in (one_gpu_job, third_job):
        process.communicate("\n")
    assert two_gpu_job.stdout.readline() == "0,3\n"


@pytest.mark.parametrize(("device", "variable"), [("cpu", None), ("cuda", "SLURM_JOB_ID"), ("cuda", "RANK")])
def test_no_locks_on_a_cpu_or_if_a_scheduler_assigns_gpus(device, variable, tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "RANK", VISIBLE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path))
    with locked_gpus(device):
        assert VISIBLE_VARIABLE not in os.environ
    assert not list(tmp_path.iterdir())


FOREIGN = {
    "a link": lambda folder, other: folder.symlink_to(other),
    "open to others": lambda folder, other: (folder.mkdir(), folder.chmod(0o755)),
}


@pytest.fixture
def lock_folder(tmp_path, monkeypatch):
    """The folder of the locks on a machine with GPU 0 and without a scheduler."""
    for name in ("SLURM_JOB_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VISIBLE_VARIABLE, "0")
    monkeypatch.setenv(LOCKS_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.mark.parametrize("folder_kind", FOREIGN)
def test_a_lock_folder_that_others_can_access_is_refused(folder_kind, lock_folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    FOREIGN[folder_kind](lock_folder, other)
    with pytest.raises(UserError, match=f"{lock_folder}: .*set {LOCKS_VARIABLE} to another"), locked_gpus("cuda"):
        pass
    assert not list(other.iterdir())


def test_the_lock_folder_is_private_and_gpu_names_may_have_any_characters(lock_folder, monkeypatch):
    monkeypatch.setenv(VISIBLE_VARIABLE, "MIG-GPU-5c1/1/0, 3")
    with locked_gpus("cuda", 2):
        assert os.environ[VISIBLE_VARIABLE] == "MIG-GPU-5c1/1/0,3"
    assert lock_folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in lock_folder.iterdir()} == {0o600}


def test_torchrun_gives_its_processes_time_to_save(monkeypatch, tmp_path):
    """torchrun forwards the signal, and does not kill a process that takes minutes to save."""
    launched = {}

    class Started:
        def __init__(self, words, env):
            launched.update(words=words, env=env)

        def wait(self):
            return 0

    monkeypatch.setattr("subprocess.Popen", Started)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    arguments = {"id": "a", "margin": 30.0, "checkpoint_seconds": 60.0, "time_limit": None}
    train_distributed(tmp_path, {"threads": 1}, argparse.Namespace(**arguments, deterministic=True), 2, tmp_path)
    assert "--deterministic" in launched["words"]
    monkeypatch.setattr(os, "environ", launched["env"])
    assert LaunchConfig(1, 1, 1).shutdown_timeout == 3600
