"""A run of the DAG as a terminal shows it: a line per stage, one per job that fails, and a bar for the whole."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from formerlab.results.stages import MAKING, MEASURED, STAGES, TIMED

SECONDS_BETWEEN_LINES = 30.0
"""Between two lines of the bar where they are kept, in a file or a pipe."""
SECONDS_BETWEEN_REWRITES = 1.0
SECONDS_OF_A_JOB = 4.0
"""What a job counts for whose cost the plan does not predict: the start of Python and little more."""
LAST_LINES = 3
"""Of the log of a failed job."""
BAR_WIDTH = 20
COLUMNS_OF_A_FILE = 120
UNITS = (
    {"data": ("data set", "data sets")}
    | dict.fromkeys(TIMED, ("study", "studies"))
    | dict.fromkeys((*MAKING, *MEASURED), ("run", "runs"))
    | {"draw": ("group of figures", "groups of figures"), "exact": ("set of checks", "sets of checks")}
    | {"claims": ("table", "tables"), "runs": ("table", "tables"), "track": ("sync with MLflow", "syncs with MLflow")}
)
"""What the jobs of a stage are for; a rule that is not here only asks for others."""


@dataclass
class _Job:
    stage: str
    label: str
    log: str


class RunDisplay:
    """Show what is done of the jobs of a plan, and how long the rest may take.

    On a terminal the last line is the bar and is rewritten; elsewhere a line of it is added now and then. The time
    left takes the costs of the plan as weights: the rest goes as fast as what is done went. While that is less than a
    tenth it goes as fast as the plan says, for timings come first, whose costs no plan knows. `counts` are the jobs to
    do by rule, `clock` gives seconds.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        counts: dict[str, int],
        cores: int | None,
        file: TextIO,
        *,
        bar: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._clock, self._with_bar = file, clock, bar
        self._terminal = file.isatty()
        self._all = _by_stage(counts)
        self._seconds = {
            stage: _mean_seconds(plan[stage]) if stage in STAGES and stage in plan else SECONDS_OF_A_JOB
            for stage in self._all
        }
        self._cores = cores
        self._done: Counter[str] = Counter()
        self._running: dict[int, _Job] = {}
        self._failed: dict[int, _Job] = {}
        self._began: dict[str, float] = {}
        self._refusals: set[str] = set()
        self._start = self._last_end = self._shown_at = clock()
        self._lock = threading.RLock()
        self._closed = threading.Event()
        if self._total and bar:
            self._write(
                f"scale {plan.get('scale', '')}: {self._total} jobs to do; details in logs/{plan.get('scale', '')}/"
            )
            if self._terminal:
                self._rewrite()
                threading.Thread(target=self._tick, daemon=True).start()

    @property
    def _total(self) -> int:
        return self._all.total()

    def started(self, job: int, rule: str, name: str, log: str = "") -> None:
        """Say that a job runs: its number, its rule, what it is for, and where its log is."""
        with self._lock:
            stage = stage_of(rule)
            label = f"{stage} {name or rule.partition('_')[2]}".strip()
            self._running[job] = _Job(stage, label, log)
            self._began.setdefault(stage, self._clock())
            self._show()

    def finished(self, job: int) -> None:
        """Say that a job is done."""
        with self._lock:
            done = self._running.pop(job, None)
            self._failed.pop(job, None)
            if done is None or done.stage not in self._all:
                return
            self._done[done.stage] += 1
            self._last_end = self._clock()
            for line in _warnings(done.log):
                self.say(line)
            if self._done[done.stage] == self._all[done.stage] and self._with_bar:
                self.say(self._stage_line(done.stage))
            self._show()

    def _stage_line(self, stage: str) -> str:
        count, (one, many) = self._done[stage], UNITS[stage]
        took = tqdm.format_interval(self._last_end - self._began[stage])
        return f"{stage:<11} {count:>5} {one if count == 1 else many:<19} {took:>8}"

    def failed(self, job: int, refused: str = "") -> None:
        """Say that a job did not finish: its log and how that ends; or why a cluster refused it, once for all jobs."""
        with self._lock:
            one = self._running.pop(job, None) or _Job("", f"job {job}", "")
            self._failed[job] = one
            if not refused:
                self.say("\n".join([f"{one.label} did not finish; log {one.log or '(none)'}", *_last_lines(one.log)]))
            elif refused not in self._refusals:
                self._refusals.add(refused)
                self.say(f"{one.label} could not be submitted: {' '.join(refused.split())}")
            self._show()

    def tried_again(self, job: int) -> None:
        """Say that a job which did not finish is tried again."""
        with self._lock:
            if (one := self._failed.pop(job, None)) is not None:
                self.say(f"{one.label} is tried again")

    def say(self, text: str) -> None:
        """Write lines above the bar."""
        with self._lock:
            self._write(text)
            if self._terminal and self._with_bar and not self._closed.is_set():
                self._rewrite()

    def close(self) -> None:
        """Show the last state, say what to do about failed jobs, and leave the line."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            if self._with_bar and self._total:
                self._write(self.line())
            if self._failed:
                count = "1 job" if len(self._failed) == 1 else f"{len(self._failed)} jobs"
                self._write(
                    f"{count} did not finish, and what needs them did not start; mend what the logs say, then give the "
                    "same command again"
                )

    def line(self) -> str:
        """Return the bar."""
        now = self._clock()
        left = self._left(now)
        parts = [f", about {tqdm.format_interval(left)} left"] if left is not None else []
        parts += [f", {len(self._failed)} failed"] if self._failed else []
        labels = [job.label for job in self._running.values() if job.stage in self._all]
        parts += [f"  {', '.join(labels)}"] if labels else []
        done, whole = self._done.total(), self._total
        filled = "#" * (BAR_WIDTH * done // max(whole, 1))
        gone = tqdm.format_interval(now - self._start)
        return f"[{filled:-<{BAR_WIDTH}}] {done} of {whole} jobs, {gone} gone{''.join(parts)}"[: _columns(self._file)]

    def _left(self, now: float) -> float | None:
        """Return the seconds that the rest may take; None where that is unknown, or nothing is left."""
        work = {stage: count * self._seconds[stage] for stage, count in self._all.items()}
        done = sum(self._done[stage] * self._seconds[stage] for stage in work)
        rest = sum(work.values()) - done
        told = done >= sum(work.values()) / 10
        if rest <= 0 or self._closed.is_set():
            return None
        if told and self._last_end > self._start:
            return max(0.0, rest * (self._last_end - self._start) / done - (now - self._last_end))
        return max(0.0, rest / self._cores - (now - self._last_end)) if self._cores else None

    def _show(self) -> None:
        if not self._with_bar or self._closed.is_set():
            return
        if self._terminal:
            self._rewrite()
        elif self._clock() - self._shown_at >= SECONDS_BETWEEN_LINES:
            self._shown_at = self._clock()
            self._write(self.line())

    def _rewrite(self) -> None:
        self._file.write(f"\r{self.line()}\x1b[K")
        self._file.flush()

    def _write(self, text: str) -> None:
        self._file.write(f"\r\x1b[K{text}\n" if self._terminal else f"{text}\n")
        self._file.flush()

    def _tick(self) -> None:
        while not self._closed.wait(SECONDS_BETWEEN_REWRITES):
            with self._lock:
                self._show()


def stage_of(rule: str) -> str:
    """Return the stage of a rule: drawings have a rule each."""
    return "draw" if rule.startswith("draw") else rule


def _by_stage(counts: dict[str, int]) -> Counter[str]:
    """Return the numbers of jobs by stage, given those by rule; what only asks for others is no stage."""
    found: Counter[str] = Counter()
    for rule, count in counts.items():
        if stage_of(rule) in UNITS:
            found[stage_of(rule)] += count
    return found


def job_counts(stats: dict[str, int]) -> str:
    """Return a line per stage of jobs to do, given their numbers by rule."""
    found = _by_stage(stats)
    lines = [f"{stage:<11} {count:>5} {UNITS[stage][count != 1]}" for stage, count in found.items()]
    return "\n".join([*lines, f"{'in all':<11} {found.total():>5} jobs; -p names each"])


def _mean_seconds(jobs: dict[str, Any]) -> float:
    """Return the mean of the predicted times of the jobs of a stage."""
    hours = [job["cost"]["hours"] for job in jobs.values() if isinstance(job, dict) and "cost" in job]
    return max(SECONDS_OF_A_JOB, 3600 * sum(hours) / len(hours)) if hours else SECONDS_OF_A_JOB


def _warnings(log: str) -> list[str]:
    """Return the warnings in the log of a job that is done."""
    return [line for line in _lines(log) if line.startswith("warning: ")]


def _last_lines(log: str) -> list[str]:
    """Return how the log of a job ends, indented."""
    return [f"    {line}" for line in _lines(log) if line.strip()][-LAST_LINES:]


def _lines(log: str) -> list[str]:
    try:
        return Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    except OSError:
        return []


def _columns(file: TextIO) -> int:
    """Return the columns that a line may have: those of the terminal, less one for the cursor."""
    try:
        columns = os.get_terminal_size(file.fileno()).columns
    except OSError:  # a pipe, a file, a buffer
        columns = 0
    return max(columns - 1, 0) or COLUMNS_OF_A_FILE
