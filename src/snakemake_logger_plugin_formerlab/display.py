"""A run of the DAG as a terminal or a log shows it: a line per stage, some for a job that fails, and tqdm's bar."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tqdm import tqdm

from formerlab.progress import Lines
from formerlab.results.stages import STAGES

SHOWN = {*STAGES, "draw", "claims", "runs", "track"}
"""The stages of the DAG; a rule of no stage only asks for others."""
SECONDS_OF_A_JOB = 4.0
"""What a job counts for whose cost the plan does not predict: the start of Python and little more."""


class _Job(NamedTuple):
    stage: str
    label: str
    log: str


class Display:
    """Show what is done of the jobs of a plan, and how long the rest may take by the predicted costs of both."""

    def __init__(self, plan: dict[str, Any], counts: dict[str, int], file: TextIO, *, bar: bool = True) -> None:
        """Begin with the numbers of jobs to do by rule."""
        self._file, self._all, self._done = file, by_stage(counts), Counter[str]()
        self._running: dict[int, _Job] = {}
        self._failed: dict[int, _Job] = {}
        self._refusals: set[str] = set()
        self._seconds = {stage: _seconds(plan.get(stage, {})) for stage in self._all}
        self._closed, terminal = threading.Event(), file.isatty()
        if bar and self._all:
            scale = plan.get("scale", "")
            self.say(f"scale {scale}: {self._all.total()} jobs to do; details in logs/{scale}/")
        self._bar: tqdm[Any] = tqdm(
            desc=f"0 of {self._all.total()} jobs",
            total=sum(count * self._seconds[stage] for stage, count in self._all.items()),
            file=file if terminal else Lines(file),
            mininterval=1 if terminal else 30,
            miniters=0,
            smoothing=0,
            dynamic_ncols=terminal,
            disable=not (bar and self._all),
            bar_format="[{bar:20}] {desc}, {elapsed} gone, {remaining} left{postfix}",
            ascii="-#",
        )
        if terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def started(self, job: int, rule: str, name: str, log: str = "") -> None:
        """Say that a job runs: its number, its rule, what it is for, and where its log is."""
        stage = stage_of(rule)
        self._running[job] = _Job(stage, f"{stage} {name or rule.partition('_')[2]}".strip(), log)
        self._show()

    def finished(self, job: int) -> None:
        """Say that a job is done: the warnings in its log, and its stage where that is done too."""
        done = self._running.pop(job, None)
        self._failed.pop(job, None)
        if done is None or done.stage not in self._all:
            return
        self._done[done.stage] += 1
        for line in _lines(done.log):
            if line.startswith("warning: "):
                self.say(line)
        if self._done[done.stage] == self._all[done.stage] and not self._bar.disable:
            passed = tqdm.format_interval(self._bar.format_dict["elapsed"])
            self.say(f"{done.stage:<11} {self._all[done.stage]:>5} jobs done after {passed:>8}")
        self._show(self._seconds[done.stage])

    def failed(self, job: int, refused: str = "") -> None:
        """Say that a job did not finish: its log and how that ends; or why a cluster refused it, once for all jobs."""
        one = self._failed[job] = self._running.pop(job, _Job("", f"job {job}", ""))
        if not refused:
            last = [f"    {line}" for line in _lines(one.log) if line.strip()][-3:]
            self.say("\n".join([f"{one.label} did not finish; log {one.log or '(none)'}", *last]))
        elif refused not in self._refusals:
            self._refusals.add(refused)
            self.say(f"{one.label} could not be submitted: {' '.join(refused.split())}")
        self._show()

    def tried_again(self, job: int) -> None:
        """Say that a job which did not finish is tried again."""
        if (one := self._failed.pop(job, None)) is not None:
            self.say(f"{one.label} is tried again")

    def say(self, text: str) -> None:
        """Write lines above the bar."""
        tqdm.write(text, file=self._file)

    def close(self) -> None:
        """Show the last state and say what to do about failed jobs."""
        if not self._closed.is_set():
            self._closed.set()
            self._show()
            self._bar.close()
            if self._failed:
                count = "1 job" if len(self._failed) == 1 else f"{len(self._failed)} jobs"
                what = "did not finish, and what needs them did not start"
                self.say(f"{count} {what}; mend what the logs say, then give the same command again")

    def _show(self, seconds: float = 0.0) -> None:
        labels = [job.label for job in self._running.values() if job.stage in self._all]
        failed = [f"{len(self._failed)} failed"] if self._failed else []
        self._bar.set_description_str(f"{self._done.total()} of {self._all.total()} jobs", refresh=False)
        self._bar.set_postfix_str(", ".join(failed + labels), refresh=False)
        self._bar.update(seconds)

    def _tick(self) -> None:
        while not self._closed.wait(1):
            self._bar.refresh()


def stage_of(rule: str) -> str:
    """Return the stage of a rule: drawings have a rule each."""
    return "draw" if rule.startswith("draw") else rule


def by_stage(counts: dict[str, int]) -> Counter[str]:
    """Return the numbers of jobs by stage, given those by rule."""
    found: Counter[str] = Counter()
    for rule in (rule for rule in counts if stage_of(rule) in SHOWN):
        found[stage_of(rule)] += counts[rule]
    return found


def _seconds(jobs: dict[str, Any]) -> float:
    """Return the mean of the predicted times of the jobs of a stage."""
    hours = [job["cost"]["hours"] for job in jobs.values() if isinstance(job, dict) and "cost" in job]
    return max(SECONDS_OF_A_JOB, 3600 * sum(hours) / len(hours)) if hours else SECONDS_OF_A_JOB


def _lines(log: str) -> list[str]:
    try:
        return Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    except OSError:
        return []
