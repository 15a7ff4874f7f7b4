"""GPUs of a stage: hand out distinct ones to jobs that run side by side on one machine, and use several for a run."""

import argparse
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from formerlab.commands.context import find_plan, job_of
from formerlab.commands.slurm import torchrun
from formerlab.errors import StoppedEarly, UserError
from formerlab.plan.locate import read_plan
from formerlab.results.notes import read_note
from formerlab.training.runtime import SHARDED

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = "FORMERLAB_GPU_LOCKS"
"""Folder of the lock files; default: formerlab-<user id> among the machine's temporary files."""


@contextmanager
def own_gpus(device: str, count: int = 1) -> Iterator[None]:
    """Wait until `count` GPUs of this machine are nobody else's, and make them the only ones that this process sees.

    The lock is the system's and goes with the process, however it ends. It is between the jobs of one user: users who
    share a machine without a scheduler share out its GPUs by CUDA_VISIBLE_DEVICES. Under Slurm, which assigns GPUs
    itself, on the CPU, and in a process of torchrun nothing is done. Raises UserError where the folder of the lock
    files is not this user's alone.
    """
    if device != "cuda" or "SLURM_JOB_ID" in os.environ or "RANK" in os.environ:
        yield
        return
    visible = os.environ.get(VISIBLE)
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(gpu_count())]
    with ExitStack() as held:
        chosen = _lock(names, min(count, len(names)), held)
        os.environ[VISIBLE] = ",".join(chosen)
        try:
            yield
        finally:
            os.environ.pop(VISIBLE) if visible is None else os.environ.update({VISIBLE: visible})


def gpu_count() -> int:
    """Return how many GPUs torch finds on this machine."""
    import torch

    return torch.cuda.device_count()


def _lock(names: list[str], count: int, held: ExitStack) -> list[str]:
    """Return the names of `count` GPUs, locked; all or none, so that two jobs never wait for each other."""
    folder, announced = _lock_folder(), False
    while True:
        with ExitStack() as trying:
            free = []
            for name in names:
                with suppress(Timeout):
                    trying.enter_context(FileLock(folder / f"{quote(name, safe='')}.lock", timeout=0, mode=0o600))
                    free.append(name)
                if len(free) == count:
                    held.push(trying.pop_all())
                    return free
        if not announced:
            print(f"waiting for {count} of the GPUs {', '.join(names)}: other jobs have them", file=sys.stderr)
            announced = True
        time.sleep(0.5)


def _lock_folder() -> Path:
    """Return the folder of this user's lock files, made where there is none; nobody else may put anything there."""
    folder = Path(os.environ.get(LOCKS) or Path(tempfile.gettempdir(), f"formerlab-{os.getuid()}"))
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
        if stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077:
            return folder
    raise UserError(
        f"{folder}: the locks of GPUs need a folder that is yours alone (mode 0700, no link); "
        f"mend it, or name another in {LOCKS}"
    )


def on_several(arguments: argparse.Namespace, count: int, out: Path) -> None:
    """Train with `count` processes under torchrun, and end as its first process does.

    Raises
    ------
    StoppedEarly
        Where the processes stopped themselves, saved.
    """
    path = find_plan(arguments)
    plan = read_plan(path)
    job = job_of(plan, "train", arguments.id)
    words = torchrun(count, job.get("nodes", 1), job["threads"])
    words += ["-m", "formerlab", "train", arguments.id, "--plan", str(path)]
    words += [f"--margin={arguments.margin}", f"--checkpoint-seconds={arguments.checkpoint_seconds}"]
    words += [f"--on-mismatch={arguments.on_mismatch}"]
    words += ["--deterministic"] if arguments.deterministic else []
    words += [] if arguments.time_limit is None else [f"--time-limit={arguments.time_limit}"]
    # Processes that are asked to stop save first: torchrun would kill them after 30 s.
    environment = (
        {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"} | os.environ | ({SHARDED: "1"} if job.get("sharded") else {})
    )
    process = subprocess.Popen(words, env=environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    status = process.wait()
    if status:
        note = read_note("train", out) or {}
        if note.get("state") == "stopped":
            raise StoppedEarly(note["reason"])
        raise SystemExit(1)
