"""How long a programme takes on a number of GPUs: list scheduling of its jobs, and what bounds it.

Graham's list scheduling ("Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969), longest chain
first: whenever GPUs are free, the waiting job with the longest chain of jobs behind it starts that fits.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from formerlab.errors import UserError

LOST_H = (30 + 120) / 3600
"""Lost by a preemption beside the start: half a minute since the last checkpoint, two in which Slurm waits."""


@dataclass(frozen=True)
class Job:
    """A job: its hours on its GPUs, and the jobs that it waits for."""

    name: str
    hours: float
    gpus: int = 1
    after: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours that it holds."""
        return self.hours * self.gpus


def submissions(hours: float, limit_h: float, start_h: float) -> int:
    """Return in how many submissions of at most `limit_h` a job of `hours` runs; each begins with a start."""
    return max(1, ceil(round((hours - start_h) / max(limit_h - start_h, limit_h / 100), 9)))


def with_interruptions(job: Job, *, limit_h: float, start_h: float, preemptions_per_day: float) -> Job:
    """Return the job as long as it is with the starts of its later submissions and the mean cost of preemptions."""
    hours = job.hours + (submissions(job.hours, limit_h, start_h) - 1) * start_h
    return replace(job, hours=hours * (1 + preemptions_per_day / 24 * (start_h + LOST_H)))


def schedule(jobs: Iterable[Job], gpus: int) -> dict[str, tuple[float, float]]:
    """Return when each job starts and ends, in hours, on `gpus` GPUs.

    Raises
    ------
    UserError
        Where a job asks for more GPUs than there are.
    """
    found = {job.name: job for job in jobs}
    wide = max(found.values(), key=lambda job: job.gpus, default=None)
    if wide is not None and wide.gpus > gpus:
        raise UserError(f"--gpus {gpus}: {wide.name} asks for {wide.gpus}; give at least as many")
    behind = chains(found)
    waiting = sorted(found.values(), key=lambda job: (-behind[job.name], job.name))
    times: dict[str, tuple[float, float]] = {}
    running: list[tuple[float, str]] = []
    done: set[str] = set()
    now, free = 0.0, gpus
    while waiting:
        left = []
        for job in waiting:
            if job.gpus <= free and done.issuperset(job.after):
                free -= job.gpus
                times[job.name] = (now, now + job.hours)
                heapq.heappush(running, (now + job.hours, job.name))
            else:
                left.append(job)
        waiting = left
        if waiting:
            now = running[0][0]
            while running and running[0][0] <= now:
                name = heapq.heappop(running)[1]
                done.add(name)
                free += found[name].gpus
    return times


def chains(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Return the hours of the longest chain that begins with each job."""
    followers: dict[str, list[str]] = {name: [] for name in jobs}
    for job in jobs.values():
        for name in job.after:
            followers[name].append(job.name)
    length: dict[str, float] = {}
    stack = list(jobs)
    while stack:
        name = stack[-1]
        open_ones = [follower for follower in followers[name] if follower not in length]
        if open_ones:
            stack += open_ones
        else:
            length[name] = jobs[name].hours + max((length[one] for one in followers[name]), default=0.0)
            stack.pop()
    return length


def critical_path(jobs: Iterable[Job]) -> list[Job]:
    """Return the longest chain of jobs, which no number of GPUs shortens."""
    found = {job.name: job for job in jobs}
    length = chains(found)
    path: list[Job] = []
    heads = list(found)
    while heads:
        path.append(found[min(heads, key=lambda name: (-length[name], name))])
        heads = [job.name for job in found.values() if path[-1].name in job.after]
    return path


def makespan(times: Mapping[str, tuple[float, float]]) -> float:
    """Return when the last job ends, in hours."""
    return max((end for _, end in times.values()), default=0.0)
