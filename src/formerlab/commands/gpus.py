"""What a stage gets from its machine: GPUs of its own, and several for one run."""

import argparse
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from formerlab.errors import StoppedEarly, UserError, reason
from formerlab.files import read_json, variable
from formerlab.results.notes import noted, read_note
from formerlab.training.runtime import SHARDED

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = "FORMERLAB_GPU_LOCKS"
"""Folder of the lock files; default: formerlab-<user id> among the machine's temporary files."""
SHARE = "FORMERLAB_JOBS_PER_GPU"
"""Jobs that a GPU has at one time, where each needs one; default: 1. Small models leave most of it idle."""
NO_GPU = "device: cuda: torch finds no GPU on this machine"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
OUT_OF_MEMORY = "OutOfMemoryError"
"""Name of torch's error for an allocation that does not fit on a GPU."""
FITTING = {
    "train": "raise task.accumulate, set checkpoint_activations: true, or raise gpus with scale.sharded: true",
    "load": "choose a smaller model, or hardware with more memory",
}
"""What makes a stage fit on a GPU; other stages have a batch size in their settings."""
FAILURE = "FORMERLAB_FAILURE"
"""Variable that names the file in which the first process of a run that fails states its error."""
SECONDS_TO_END = 5.0
"""Time that a process has to show its own error once another one has failed."""


@contextmanager
def own_gpus(device: str, count: int = 1) -> Iterator[None]:
    """Wait for `count` free GPUs of this machine, lock them, and hide the others from this process.

    The system frees a lock when its process ends, however it ends. Locks separate the jobs of one user: users who
    share a machine without a scheduler share out its GPUs by CUDA_VISIBLE_DEVICES. Under Slurm, which assigns GPUs
    itself, on the CPU, and in a process of torchrun nothing is done.
    """
    if device != "cuda" or variable("SLURM_JOB_ID") or variable("RANK"):
        yield
        return
    visible = os.environ.get(VISIBLE)
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(gpu_count())]
    if not names:
        raise UserError(f"{NO_GPU}; set device: cpu, or go where one is")
    if len(names) < count:
        raise UserError(f"gpus: {count}, but only {len(names)} can be used here ({', '.join(names)}); lower gpus")
    with ExitStack() as held:
        chosen = _lock(names, count, held)
        os.environ[VISIBLE] = ",".join(chosen)
        try:
            yield
        finally:
            os.environ.pop(VISIBLE) if visible is None else os.environ.update({VISIBLE: visible})


@contextmanager
def fitting(stage: str, name: str) -> Iterator[None]:
    """Raise UserError, which names what to change, where the GPU has too little memory: each attempt would end so."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != OUT_OF_MEMORY:
            raise
        remedy = FITTING.get(stage, "lower the batch size in the settings of this stage")
        raise UserError(f"{stage} {name}: {reason(error).partition('. GPU')[0].rstrip('.')}; {remedy}") from error


def gpu_count() -> int:
    """Return how many GPUs torch finds on this machine."""
    import torch

    return torch.cuda.device_count()


def _lock(names: list[str], count: int, held: ExitStack) -> list[str]:
    """Return the names of `count` GPUs, locked; all or none, so that two jobs never wait for each other."""
    folder, announced, share = _lock_folder(), False, variable(SHARE) or "1"
    if not share.isdecimal() or int(share) == 0:
        raise UserError(f"{SHARE}={share}: give a number of jobs, 1 or more")
    places = [(name, place) for place in range(int(share) if count == 1 else 1) for name in names]
    while True:
        with ExitStack() as trying:
            free = []
            for name, place in places:
                with suppress(Timeout):
                    file = folder / f"{quote(name, safe='')}+{place}.lock"
                    trying.enter_context(FileLock(file, timeout=0, mode=0o600))
                    free.append(name)
                if len(free) == count:
                    held.push(trying.pop_all())
                    return free
        if not announced:
            print(f"waiting for {count} of the GPUs {', '.join(names)}: other jobs have them", file=sys.stderr)
            announced = True
        time.sleep(0.5)


def _lock_folder() -> Path:
    """Return the folder of this user's lock files, which only this user may write to; make it if it is missing."""
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


def on_several(path: Path, job: dict[str, Any], arguments: argparse.Namespace, count: int, out: Path) -> None:
    """Train a job of the plan at `path` with `count` processes under torchrun.

    Raises StoppedEarly where the processes saved their work and stopped. Where one of them failed, all end; the note of
    the stage and the error raised here are those of the process that failed first.
    """
    failure = out / ".train.failure.json"
    out.mkdir(parents=True, exist_ok=True)
    failure.unlink(missing_ok=True)
    words = [*torchrun(count, job.get("nodes", 1), job["threads"]), "-m", "formerlab", "train", arguments.id]
    words.append(f"--plan={path}")
    for option in ("margin", "checkpoint_seconds", "time_limit"):
        if (value := getattr(arguments, option)) is not None:
            words.append(f"--{option.replace('_', '-')}={value}")
    words += ["--deterministic"] if arguments.deterministic else []
    # Processes that are asked to stop save first: torchrun would kill them after 30 s.
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"} | os.environ | {FAILURE: str(failure.resolve())}
    process = subprocess.Popen(words, env=environment | ({SHARDED: "1"} if job.get("sharded") else {}))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    status = process.wait()
    if status:
        if failure.exists():
            _fail_as(read_json(failure), failure, out)
        note = read_note("train", out) or {}
        if note.get("state") == "stopped":
            raise StoppedEarly(note["reason"], note.get("progress", ()))
        raise SystemExit(1)


def _fail_as(cause: dict[str, Any], failure: Path, out: Path) -> None:
    """Leave the note of a failed training and raise its error, which the first process may have had no time for."""
    failure.unlink()
    with noted("train", out):
        if cause["mistake"]:
            raise UserError(cause["reason"])
        raise SystemExit(f"process {cause['process']} failed: {cause['reason']}")


@contextmanager
def failing_together() -> Iterator[None]:
    """End this process soon after another process of the run fails, for which it may wait in a collective forever.

    The first process alone shows its progress; every process shows its error. The first one that fails writes its
    error to the file of `FAILURE`, as {"process", "mistake", "reason"}.
    """
    if FAILURE not in os.environ:
        yield
        return
    path, own = Path(os.environ[FAILURE]), os.environ["RANK"]
    threading.Thread(target=_end_after, args=(path,), daemon=True).start()
    nowhere = open(os.devnull, "w")  # noqa: SIM115  (a logger may write to it until the end)
    out, errors = (sys.stdout, sys.stderr) if own == "0" else (nowhere, nowhere)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            yield
    except (StoppedEarly, KeyboardInterrupt):
        raise
    except BaseException as error:
        print(f"process {own} of {os.environ['WORLD_SIZE']} failed ({type(error).__name__}):", file=sys.stderr)
        said = {"process": int(own), "mistake": isinstance(error, UserError), "reason": reason(error)}
        with suppress(OSError), open(path, "x", encoding="utf-8") as file:  # the first failure is the cause
            file.write(json.dumps(said))
        raise


def _end_after(failure: Path) -> None:
    """End this process, whatever it waits for, some seconds after the file `failure` exists."""
    while not failure.exists():
        time.sleep(1)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def torchrun(count: int, nodes: int, threads: int) -> list[str]:
    """Return the words that start `count` processes of `threads` threads each, whose command follows them.

    In a Slurm job of several nodes srun starts a torchrun on each, with its share of the processes; they meet on this
    node, which is the first of the job. Elsewhere all processes are on this machine.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if nodes == 1 or job is None:
        return [*TORCHRUN, "--standalone", f"--nproc-per-node={count}"]
    with socket.socket() as free:
        free.bind(("", 0))
        meeting = f"{socket.gethostname()}:{free.getsockname()[1]}"
    each = count // nodes
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={threads * each}", "--kill-on-bad-exit=1", *TORCHRUN]
    words += [f"--nnodes={nodes}", f"--nproc-per-node={each}", "--rdzv-backend=c10d", f"--rdzv-id={job}"]
    return [*words, f"--rdzv-endpoint={meeting}"]
