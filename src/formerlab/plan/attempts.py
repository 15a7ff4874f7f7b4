"""Retries of failed jobs, detection of jobs that run in another process, and removal of stale Snakemake locks.

A stage writes a note with its state next to its results (`results/notes.py`). A killed stage leaves a note with the
state "running".
"""

import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from formerlab.results.notes import running_process, written_note
from formerlab.results.stages import STAGES

Note = dict[str, Any]
FolderOf = Callable[[str, str], Path]

MAX_RETRIES = 3
"""Maximum number of consecutive retries; a stop with progress resets the count."""


class Attempts:
    """The attempts of this Snakemake process to run its jobs; `folder(stage, name)` returns the folder of a note."""

    def __init__(self, folder: FolderOf) -> None:
        self._folder = folder
        self._notes_before: dict[tuple[str, str], Note | None] = {}
        self._kills: dict[tuple[str, str, int], int] = {}
        self._failures: dict[tuple[str, str, int], int] = {}
        self._progress: dict[tuple[str, str, int], list[int]] = {}

    def memory_kills(self, stage: str, name: str, attempt: int) -> int:
        """Return how often Slurm killed a job for exceeding its memory limit; call this before each submission."""
        key = (stage, name, attempt)
        if key not in self._kills:
            note = self._last_note(stage, name) if attempt > 1 else None
            killed = note is not None and note["state"] == "running" and killed_for_memory(note.get("slurm_job"))
            self._kills[key] = self._kills.get((stage, name, attempt - 1), 0) + killed
            self._notes_before[stage, name] = written_note(stage, self._folder(stage, name))
        return self._kills[key]

    def should_retry(self, stage: str, name: str, attempt: int) -> bool:
        """Return whether to retry a job after this attempt failed.

        Return False if the user must fix an error, if another process runs the job, or if the attempt wrote no note
        (the stage did not start). Otherwise a resumable stage that stopped with new progress is retried without limit,
        and all other jobs have up to `MAX_RETRIES` consecutive retries.
        """
        note = self._last_note(stage, name)
        if note is None or note.get("mistake") or worker_of(stage, self._folder(stage, name), queue()):
            return False
        previous_failures = self._failures.get((stage, name, attempt - 1), 0)
        previous_progress = self._progress.get((stage, name, attempt - 1), [])
        progress = self._progress[stage, name, attempt] = note.get("progress", previous_progress)
        progressed = note["state"] == "stopped" and STAGES[stage].resumes and progress != previous_progress
        failures = self._failures[stage, name, attempt] = 0 if progressed else previous_failures + 1
        return failures <= MAX_RETRIES

    def _last_note(self, stage: str, name: str) -> Note | None:
        """Return the note of the last attempt, or None if it wrote no note."""
        note = written_note(stage, self._folder(stage, name))
        return None if note == self._notes_before.get((stage, name)) else note


def command_output(*command: str) -> str | None:
    """Return the output of a scheduler's command, or None if the command is missing, fails or exceeds a minute."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def killed_for_memory(job: str | None) -> bool:
    """Return whether Slurm killed a job because it exceeded its memory limit.

    The state of such a job is OUT_OF_MEMORY or, if Slurm counts memory without cgroups, FAILED with signal 9 for the
    job or one of its steps.
    """
    output = job and command_output("scontrol", "--details", "--oneliner", "show", "job", job)
    if not output:
        return False
    state = re.search(r"\bJobState=(\w+)", output)
    killed = re.search(r"\b(Derived)?ExitCode=\d+:9\b", output)
    return state is not None and (state[1] == "OUT_OF_MEMORY" or (state[1] == "FAILED" and killed is not None))


def queue() -> dict[str, tuple[str, str]] | None:
    """Return (folder, comment) of this user's waiting and running jobs by id, or None if Slurm does not answer.

    Snakemake sets the comment to rule and wildcards; a job array has the comment of its first job.
    """
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
    output = command_output("squeue", f"--user={os.getuid()}", "--noheader", states, "--format=%A|%Z|%k")
    if output is None:
        return None
    rows = (line.split("|", 2) for line in output.splitlines())
    return {job: (folder, comment) for job, folder, comment in rows}


def worker_of(stage: str, folder: Path, jobs: Container[str] | None) -> str | None:
    """Return the name of the Slurm job or process that works on a stage in `folder`, or None."""
    note = written_note(stage, folder)
    if note and note["state"] == "running" and note.get("slurm_job") and jobs is not None:
        return f"Slurm job {note['slurm_job']}" if note["slurm_job"] in jobs else None
    return running_process(stage, folder)


def already_running(jobs_of_plan: Mapping[tuple[str, str], str | None], folder_of: FolderOf, root: Path) -> str | None:
    """Return an error message if a process runs jobs of this plan or Slurm has queued them from `root`, otherwise None.

    `jobs_of_plan` maps (stage, name) to the job's id in a scheduler other than Slurm, or to None.
    """
    jobs, busy = queue(), dict[str, str]()
    comments = {job: comment for job, (folder, comment) in (jobs or {}).items() if Path(folder) == root}
    for (stage, name), job_id in jobs_of_plan.items():
        if worker := f"job {job_id}" if job_id else worker_of(stage, folder_of(stage, name), jobs):
            busy[worker] = f"{stage} {name}"
        rule = f"rule_{stage}"
        job_comments = (rule, f"{rule}_wildcards_{name.replace('/', '_')}")
        waiting = (job for job, comment in comments.items() if comment in job_comments)
        busy |= {f"Slurm job {job}": f"{stage} {name}" for job in waiting}
    if not busy:
        return None
    worker, job = next(iter(busy.items()))
    further = f"; also running or queued: {', '.join(list(busy)[1:])}" if len(busy) > 1 else ""
    slurm = [worker.removeprefix("Slurm job ") for worker in busy if worker.startswith("Slurm job ")]
    stop = f"stop it with `scancel {' '.join(slurm)}` (work is saved)" if slurm else "stop it"
    return (
        f"{job} is already running or queued: {worker}{further}. Wait for it or {stop}, then run the same command again"
    )


def remove_stale_locks(folder: Path) -> TextIO | None:
    """Remove the locks of a killed Snakemake below `folder`, unless another Snakemake runs in this folder.

    Returns a file that must stay open until this Snakemake ends, or None if the folder is read-only or its file system
    has no locks. Every Snakemake process holds a shared lock on this file, so an exclusive lock succeeds only if no
    other Snakemake runs. Locks of another machine are not removed, because some network file systems do not share
    locks.
    """
    locks = list((folder / "locks").glob("*.lock"))
    with suppress(OSError):  # a read-only folder, or a file system without locks
        folder.mkdir(exist_ok=True)
        file = open(folder / "lives", "a+", encoding="utf-8")  # noqa: SIM115  (held until the process ends)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
            return file
        file.seek(0)
        host = socket.gethostname()
        if file.read() == host or not locks:
            for lock in locks:
                lock.unlink(missing_ok=True)
            if locks:
                print("an earlier run was killed; its lock was removed, and this run continues", file=sys.stderr)
            file.truncate(0)
            file.write(host)
            file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        return file
    return None
