"""The processes that train one run together: torchrun, on this machine or on every node of a Slurm job."""

import os
import socket
import sys

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
