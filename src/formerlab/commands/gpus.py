"""GPUs of a stage: hand out distinct ones to jobs that run side by side on one machine, and use several for a run."""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from formerlab.commands.context import find_plan, job_of, read_note
from formerlab.commands.torchrun import torchrun
from formerlab.errors import StoppedEarly
from formerlab.plan.locate import read_plan
from formerlab.training.settings import SHARDED

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = "FORMERLAB_GPU_LOCKS"
"""Folder of the lock files; default: one for this user among the machine's temporary files."""


@contextmanager
def own_gpus(device: str, count: int = 1) -> Iterator[None]:
    """Wait until `count` GPUs of this machine are nobody else's, and make them the only ones that this process sees.

    The lock is the system's and goes with the process, however it ends. Under Slurm, which assigns GPUs itself, on the
    CPU, and in a process of torchrun nothing is done.
    """
    if device != "cuda" or "SLURM_JOB_ID" in os.environ or "RANK" in os.environ:
        yield
        return
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else [str(index) for index in range(_gpu_count())]
    with ExitStack() as held:
        chosen = _lock(names, min(count, len(names)), held)
        os.environ[VISIBLE] = ",".join(chosen)
        try:
            yield
        finally:
            os.environ.pop(VISIBLE) if visible is None else os.environ.update({VISIBLE: visible})


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def _lock(names: list[str], count: int, held: ExitStack) -> list[str]:
    """Return the names of `count` GPUs, locked; all or none, so that two jobs never wait for each other."""
    default = Path(tempfile.gettempdir(), f"formerlab-gpus-{os.getuid()}")
    folder = Path(os.environ.get(LOCKS, default))
    folder.mkdir(parents=True, exist_ok=True)
    said = False
    while True:
        with ExitStack() as trying:
            free = list(islice((name for name in names if _try(folder / f"{name}.lock", trying)), count))
            if len(free) == count:
                held.push(trying.pop_all())
                return free
        if not said:
            print(f"waiting for {count} of the GPUs {', '.join(names)}: other jobs have them", file=sys.stderr)
            said = True
        time.sleep(0.5)


def _try(path: Path, stack: ExitStack) -> bool:
    file: IO[str] = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed with the stack
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    stack.callback(file.close)
    return True


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
    words = torchrun(count, job.get("nodes", 1), plan["threads"])
    words += ["-m", "formerlab", "train", arguments.id, "--plan", str(path)]
    words += [f"--margin={arguments.margin}", f"--checkpoint-seconds={arguments.checkpoint_seconds}"]
    words += [f"--on-mismatch={arguments.on_mismatch}"]
    words += [] if arguments.time_limit is None else [f"--time-limit={arguments.time_limit}"]
    process = subprocess.Popen(words, env=os.environ | ({SHARDED: "1"} if job.get("sharded") else {}))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    status = process.wait()
    if status:
        note = read_note("train", out) or {}
        if note.get("state") == "stopped":
            raise StoppedEarly(note["reason"])
        raise SystemExit(1)
