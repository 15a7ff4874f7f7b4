"""The Slurm job that this process is in: the time that it has left, and the processes that train a run in it."""

import os
import re
import socket
import subprocess
import sys

LEFT = re.compile(r"(?:(?:(?P<days>\d+)-)?(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
UNITS_S = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}


def seconds_left() -> float | None:
    """Return the time until Slurm ends this job; nothing outside a job, or where it has no limit or cannot be asked.

    It counts from the start of the job: what came before this process, such as slow imports, is taken off.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    words = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        output = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_left(output)


def parse_left(output: str) -> float | None:
    """Return the seconds in squeue's days-hours:minutes:seconds; nothing for words such as UNLIMITED."""
    found = LEFT.fullmatch(output)
    return None if found is None else float(sum(UNITS_S[unit] * int(n) for unit, n in found.groupdict("0").items()))


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--local-ranks-filter=0")


def torchrun(count: int, nodes: int, threads: int) -> list[str]:
    """Return the words that start `count` processes of `threads` threads each, whose command follows them.

    In a Slurm job of several nodes srun starts a torchrun on each, with its share of the processes; they meet on this
    node, which is the first of the job. Elsewhere all processes are on this machine.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if nodes == 1 or job is None:
        return [*TORCHRUN, "--standalone", f"--nproc-per-node={count}"]
    each = count // nodes
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    words += [f"--cpus-per-task={threads * each}", "--kill-on-bad-exit=1"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-id={job}", f"--rdzv-endpoint={socket.gethostname()}:{_free_port()}"]
    return [*words, *TORCHRUN, f"--nnodes={nodes}", f"--nproc-per-node={each}", *meeting]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])
