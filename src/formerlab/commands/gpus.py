"""Assign GPUs to stages, and train one run with several processes."""

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
from formerlab.results.notes import read_note, stage_note
from formerlab.training.runtime import SHARDED

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
LOCKS_VARIABLE = "FORMERLAB_GPU_LOCKS"
"""Environment variable with the folder of the lock files; default: formerlab-<user id> in the temporary folder."""
JOBS_PER_GPU_VARIABLE = "FORMERLAB_JOBS_PER_GPU"
"""Environment variable with the number of single-GPU jobs that run on one GPU at a time; default: 1."""
NO_GPU = "device: cuda: torch finds no GPU on this machine"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
OUT_OF_MEMORY = "OutOfMemoryError"
"""Class name of torch's error for insufficient GPU memory."""
MEMORY_REMEDIES = {
    "train": "raise task.accumulate, set checkpoint_activations: true, or raise gpus with scale.sharded: true",
    "load": "choose a smaller model, or hardware with more memory",
}
"""Remedies for stages that run out of GPU memory. For all other stages, the remedy is a smaller batch size."""
FAILURE_VARIABLE = "FORMERLAB_FAILURE"
"""Environment variable with the file to which the first failing process of a run writes its error."""
SECONDS_TO_END = 5.0
"""Time in seconds in which a process can print its own error after another process failed."""


@contextmanager
def locked_gpus(device: str, count: int = 1) -> Iterator[None]:
    """Wait for `count` free GPUs of this machine, lock them, and hide all other GPUs from this process.

    The operating system releases the locks when the process ends. Locks separate only the jobs of a single user;
    several users of a machine without a scheduler must divide its GPUs by CUDA_VISIBLE_DEVICES. No GPU is locked
    if `device` is not cuda, in a torchrun process, or under Slurm. Raises UserError if the machine has fewer than
    `count` GPUs.
    """
    if device != "cuda" or variable("SLURM_JOB_ID") or variable("RANK"):
        yield
        return
    visible = os.environ.get(VISIBLE_VARIABLE)
    names = [name.strip() for name in visible.split(",")] if visible else [str(index) for index in range(gpu_count())]
    if not names:
        raise UserError(f"{NO_GPU}; set device: cpu, or use a machine with a GPU")
    if len(names) < count:
        raise UserError(f"gpus: {count}, but only {len(names)} are available ({', '.join(names)}); lower gpus")
    with ExitStack() as locks:
        chosen = _lock(names, count, locks)
        os.environ[VISIBLE_VARIABLE] = ",".join(chosen)
        try:
            yield
        finally:
            os.environ.pop(VISIBLE_VARIABLE) if visible is None else os.environ.update({VISIBLE_VARIABLE: visible})


@contextmanager
def explain_out_of_memory(stage: str, name: str) -> Iterator[None]:
    """Raise a UserError with a remedy if the block runs out of GPU memory."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != OUT_OF_MEMORY:
            raise
        remedy = MEMORY_REMEDIES.get(stage, "lower the batch size in the settings of this stage")
        raise UserError(f"{stage} {name}: {reason(error).partition('. GPU')[0].rstrip('.')}; {remedy}") from error


def gpu_count() -> int:
    """Return the number of GPUs that torch finds on this machine."""
    import torch

    return torch.cuda.device_count()


def _lock(names: list[str], count: int, locks: ExitStack) -> list[str]:
    """Wait until `count` GPUs are free, lock all of them together, and return their names."""
    folder, announced, jobs_per_gpu = _lock_folder(), False, variable(JOBS_PER_GPU_VARIABLE) or "1"
    if not jobs_per_gpu.isdecimal() or int(jobs_per_gpu) == 0:
        raise UserError(f"{JOBS_PER_GPU_VARIABLE}={jobs_per_gpu}: set a number of jobs, 1 or more")
    slots = [(name, slot) for slot in range(int(jobs_per_gpu) if count == 1 else 1) for name in names]
    while True:
        with ExitStack() as attempt:
            free = []
            for name, slot in slots:
                with suppress(Timeout):
                    file = folder / f"{quote(name, safe='')}+{slot}.lock"
                    attempt.enter_context(FileLock(file, timeout=0, mode=0o600))
                    free.append(name)
                if len(free) == count:
                    locks.push(attempt.pop_all())
                    return free
        if not announced:
            print(f"waiting for free GPUs ({count} needed): other jobs use {', '.join(names)}", file=sys.stderr)
            announced = True
        time.sleep(0.5)


def _lock_folder() -> Path:
    """Return the folder of lock files, writable only by this user; create it if it is missing."""
    folder = Path(os.environ.get(LOCKS_VARIABLE) or Path(tempfile.gettempdir(), f"formerlab-{os.getuid()}"))
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.lstat()
        if stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077:
            return folder
    problem = f"{folder}: GPU locks need a folder that only you can access (mode 0700, not a link)"
    raise UserError(f"{problem}; change it, or set {LOCKS_VARIABLE} to another folder")


def train_distributed(path: Path, job: dict[str, Any], arguments: argparse.Namespace, count: int, out: Path) -> None:
    """Train a job of the plan at `path` with `count` processes under torchrun.

    Raises StoppedEarly if the processes saved their work and stopped. If a process fails, all processes end, and the
    stage note and the raised error describe the first failure.
    """
    failure = out / ".train.failure.json"
    out.mkdir(parents=True, exist_ok=True)
    failure.unlink(missing_ok=True)
    command = [*torchrun(count, job.get("nodes", 1), job["threads"]), "-m", "formerlab", "train", arguments.id]
    command.append(f"--plan={path}")
    for option in ("margin", "checkpoint_seconds", "time_limit"):
        if (value := getattr(arguments, option)) is not None:
            command.append(f"--{option.replace('_', '-')}={value}")
    command += ["--deterministic"] if arguments.deterministic else []
    # Stopped processes save their work; by default torchrun kills them after 30 s.
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3600"} | os.environ | {FAILURE_VARIABLE: str(failure.resolve())}
    process = subprocess.Popen(command, env=environment | ({SHARDED: "1"} if job.get("sharded") else {}))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.send_signal(signal.SIGTERM))
    status = process.wait()
    if status:
        if failure.exists():
            _raise_first_failure(read_json(failure), failure, out)
        note = read_note("train", out) or {}
        if note.get("state") == "stopped":
            raise StoppedEarly(note["reason"], note.get("progress", ()))
        raise SystemExit(1)


def _raise_first_failure(cause: dict[str, Any], failure: Path, out: Path) -> None:
    """Write the stage note of a failed training, and raise the error of the process that failed first.

    The process that failed may have ended before it wrote the note.
    """
    failure.unlink()
    with stage_note("train", out):
        if cause["mistake"]:
            raise UserError(cause["reason"])
        raise SystemExit(f"process {cause['process']} failed: {cause['reason']}")


@contextmanager
def end_all_on_failure() -> Iterator[None]:
    """End this process within seconds after another process of the run fails.

    Otherwise this process would wait forever in a collective operation. The first process that fails writes its error
    as JSON to the file that FAILURE_VARIABLE names. Only process 0 prints progress; every process prints its error.
    """
    if FAILURE_VARIABLE not in os.environ:
        yield
        return
    path, rank = Path(os.environ[FAILURE_VARIABLE]), os.environ["RANK"]
    threading.Thread(target=_exit_after_failure, args=(path,), daemon=True).start()
    null = open(os.devnull, "w")  # noqa: SIM115  (a logger may write to it until the end)
    out, errors = (sys.stdout, sys.stderr) if rank == "0" else (null, null)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            yield
    except (StoppedEarly, KeyboardInterrupt):
        raise
    except BaseException as error:
        print(f"process {rank} of {os.environ['WORLD_SIZE']} failed ({type(error).__name__}):", file=sys.stderr)
        cause = {"process": int(rank), "mistake": isinstance(error, UserError), "reason": reason(error)}
        with suppress(OSError), open(path, "x", encoding="utf-8") as file:  # the first failure is the cause
            file.write(json.dumps(cause))
        raise


def _exit_after_failure(failure: Path) -> None:
    """Wait until the file `failure` exists, then end this process after `SECONDS_TO_END` seconds."""
    while not failure.exists():
        time.sleep(1)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def torchrun(count: int, nodes: int, threads: int) -> list[str]:
    """Return the command prefix that starts `count` processes of `threads` threads each.

    In a Slurm job of several nodes, srun starts torchrun once per node with an equal number of processes, and this node
    (the first) is the rendezvous endpoint. Otherwise all processes run on this machine.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if nodes == 1 or job is None:
        return [*TORCHRUN, "--standalone", f"--nproc-per-node={count}"]
    with socket.socket() as unused:
        unused.bind(("", 0))
        endpoint = f"{socket.gethostname()}:{unused.getsockname()[1]}"
    per_node = count // nodes
    command = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    command += [f"--cpus-per-task={threads * per_node}", "--kill-on-bad-exit=1", *TORCHRUN]
    command += [f"--nnodes={nodes}", f"--nproc-per-node={per_node}", "--rdzv-backend=c10d", f"--rdzv-id={job}"]
    return [*command, f"--rdzv-endpoint={endpoint}"]
