"""How attempts of jobs ended: which jobs are tried again, and with how much memory.

Also which jobs run already in another process, so that nothing starts twice, and which stale locks may go.

A stage leaves a note beside its results (`noted`) that says how it ended, or still "running" where it was killed; only
Slurm knows what for.
"""

import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from formerlab.results.notes import holder, note_of
from formerlab.results.stages import STAGES

Note = dict[str, Any]
Folder = Callable[[str, str], Path]

FEW = 3
"""Further attempts after a crash, a kill or a stop without progress; a stop after more work begins the count anew."""


class Attempts:
    """The attempts of this process; `folder` returns the folder in which a job of a stage leaves its note."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._before: dict[tuple[str, str], Note | None] = {}
        self._kills: dict[tuple[str, str, int], int] = {}
        self._abrupt: dict[tuple[str, str, int], int] = {}
        self._progress: dict[tuple[str, str, int], list[int]] = {}

    def memory_kills(self, stage: str, name: str, attempt: int) -> int:
        """Return how often a job was killed for memory; called before each submission."""
        key = (stage, name, attempt)
        if key not in self._kills:
            note = self._note_of_last(stage, name) if attempt > 1 else None
            killed = note is not None and note["state"] == "running" and killed_for_memory(note.get("slurm_job"))
            self._kills[key] = self._kills.get((stage, name, attempt - 1), 0) + killed
            self._before[stage, name] = note_of(stage, self._folder(stage, name))
        return self._kills[key]

    def worth_another(self, stage: str, name: str, attempt: int) -> bool:
        """Say whether to try a job again after this attempt failed.

        A job that stopped with more work saved than at its last stop goes on. Any other, also one that begins anew, has
        `FEW` more in a row.
        There is no further attempt where a person has to mend something, where another process does the same work, and
        where the attempt left no note: then Slurm refused it, or it ended before its stage began.
        """
        note = self._note_of_last(stage, name)
        if note is None or note.get("mistake") or who_is_at(stage, self._folder(stage, name), queue()):
            return False
        before = self._abrupt.get((stage, name, attempt - 1), 0)
        last = self._progress.get((stage, name, attempt - 1), [])
        progress = self._progress[stage, name, attempt] = note.get("progress", last)
        saved = note["state"] == "stopped" and STAGES[stage].resumes and progress != last
        abrupt = self._abrupt[stage, name, attempt] = 0 if saved else before + 1
        return abrupt <= FEW

    def _note_of_last(self, stage: str, name: str) -> Note | None:
        """Return the note of the last attempt; an older one does not count."""
        note = note_of(stage, self._folder(stage, name))
        return None if note == self._before.get((stage, name)) else note


def ask_slurm(*words: str) -> str | None:
    """Return the output of a command of Slurm; None where Slurm does not answer."""
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def killed_for_memory(job: str | None) -> bool:
    """Ask Slurm whether it killed a job for its memory.

    It shows that as OUT_OF_MEMORY or, where it counts memory without cgroups, as FAILED, the job or a step of it by
    signal 9.
    """
    output = job and ask_slurm("scontrol", "--details", "--oneliner", "show", "job", job)
    if not output:
        return False
    state = re.search(r"\bJobState=(\w+)", output)
    killed = re.search(r"\b(Derived)?ExitCode=\d+:9\b", output)
    return state is not None and (state[1] == "OUT_OF_MEMORY" or (state[1] == "FAILED" and killed is not None))


def queue() -> dict[str, tuple[str, str]] | None:
    """Return folder and comment of this user's waiting and running jobs, by id; None where Slurm does not answer.

    Snakemake comments rule and wildcards, of an array those of its first job.
    """
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
    output = ask_slurm("squeue", f"--user={os.getuid()}", "--noheader", states, "--format=%A|%Z|%k")
    if output is None:
        return None
    rows = (line.split("|", 2) for line in output.splitlines())
    return {job: (folder, comment) for job, folder, comment in rows}


def who_is_at(stage: str, folder: Path, jobs: Container[str] | None) -> str | None:
    """Name the Slurm job, or else the process, that works on a stage in `folder`, if there is one."""
    note = note_of(stage, folder)
    if note and note["state"] == "running" and note.get("slurm_job") and jobs is not None:
        return f"Slurm job {note['slurm_job']}" if note["slurm_job"] in jobs else None
    return holder(stage, folder)


def under_way(wanted: Iterable[tuple[str, str]], folder: Folder, root: Path) -> str | None:
    """List the jobs of a plan that run, or wait in Slurm's queue, from an earlier call in `root`."""
    jobs, busy = queue(), dict[str, str]()
    here = {job: comment for job, (place, comment) in (jobs or {}).items() if Path(place) == root}
    for stage, name in wanted:
        if who := who_is_at(stage, folder(stage, name), jobs):
            busy[who] = f"{stage} {name}"
        rule = f"rule_{stage}"
        waiting = (job for job, said in here.items() if said in (rule, f"{rule}_wildcards_{name.replace('/', '_')}"))
        busy |= {f"Slurm job {job}": f"{stage} {name}" for job in waiting}
    if not busy:
        return None
    who, what = next(iter(busy.items()))
    more = f" and {len(busy) - 1} more of its jobs ({', '.join(list(busy)[1:])})" if len(busy) > 1 else ""
    slurm = [who.removeprefix("Slurm job ") for who in busy if who.startswith("Slurm job ")]
    stop = f"`scancel {' '.join(slurm)}` stops them, saved" if slurm else "or stop it"
    return f"{what} is under way already: {who}{more}. Wait, {stop}; then give the same command again"


def take_away_stale(folder: Path) -> TextIO | None:
    """Remove the locks of a killed Snakemake below its folder if none lives here, and mark this one as living. Each
    Snakemake holds a shared lock on a file there until it ends; one that can lock it exclusively is alone. Locks from
    another machine stay, since some network file systems do not show locks across machines.
    """
    locks = list((folder / "locks").glob("*.lock"))
    with suppress(OSError):  # a read-only folder, or a file system without locks: nothing is removed
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
                print("an earlier run was killed; its lock is removed, and the work goes on", file=sys.stderr)
            file.truncate(0)
            file.write(host)
            file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        return file
    return None
