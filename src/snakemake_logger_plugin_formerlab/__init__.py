"""Snakemake's logger plugin `formerlab`: in place of a paragraph per job, a line per stage and tqdm's bar for all.

Snakemake finds it by the name of this package; profiles/default asks for it. The interface is that of the package
snakemake-interface-logger-plugins; the fields of each event are those that Snakemake 9 sends.
"""

import logging
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from tqdm import tqdm

from formerlab.errors import EXIT_USER_ERROR, UserError, near_misses
from formerlab.plan.locate import VARIABLE, read_plan
from formerlab.progress import Lines
from formerlab.results.stages import STAGES

CHATTER = ("Assuming unrestricted shared filesystem", "host: ", "Building DAG", "Using shell", "None")
"""Beginnings of what Snakemake says before a run that tells a reader nothing."""
SAID_TWICE = ("RuleException", "WorkflowError: At least one job", "Exception in run_job")
"""Beginnings of what it says of a failed job beside the event of its failure, which names job and log."""
REFUSED = re.compile(r"sbatch failed\. The error message was '(.*?)'\.\n|submission failed with exception: (.*)", re.S)
"""What the Slurm executor says of a job that could not be submitted, with Slurm's own words."""
UNKNOWN = re.compile(r"No rule to produce (\S+)")
"""What it says of a target that it does not know."""
SHOWN = {*STAGES, "draw", "claims", "runs", "track"}
"""The stages of the DAG; a rule of no stage only asks for others."""
SECONDS_OF_A_JOB = 4.0
"""What a job counts for whose cost the plan does not predict: the start of Python and little more."""


class LogHandler(LogHandlerBase):
    """Show a run of the DAG in few lines, a dry run too; with --verbose or -p, all that Snakemake says."""

    needs_rulegraph = writes_to_file = has_formatter = False
    writes_to_stream = has_filter = True

    def __post_init__(self) -> None:
        _check_cache()
        asked = self.common_settings
        quiet = {str(about) for about in asked.quiet or ()}
        self.has_filter = not (asked.verbose or asked.printshellcmds or asked.debug_dag)
        self._silent, self._bar_wanted = "all" in quiet and not asked.dryrun, "progress" not in quiet
        self._dry = asked.dryrun
        self._file = sys.stdout if asked.dryrun else sys.stderr
        self._all, self._done, self._seconds = Counter[str](), Counter[str](), dict[str, float]()
        self._running: dict[int, tuple[str, str, str]] = {}  # stage, label and log of a job
        self._failed: dict[int, str] = {}
        self._refusals: set[str] = set()
        self._bar: Any = None  # of tqdm, once the jobs are counted
        self._ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or what it changes."""
        try:
            if self.has_filter and not self._silent:
                self._read(record, vars(record), str(record.msg).replace("\n", " "))
            elif not self._silent:
                self._write(record)
        except BrokenPipeError:  # nobody reads any more, as behind `| head`
            self._silent = True
        except Exception:  # a display must not end the work
            self.handleError(record)

    def close(self) -> None:
        """Show the last state and say what to do about failed jobs."""
        if self._bar is not None and not self._ended.is_set():
            self._ended.set()
            with suppress(BrokenPipeError):
                self._show()
                self._bar.close()
                if self._failed:
                    count = "1 job" if len(self._failed) == 1 else f"{len(self._failed)} jobs"
                    what = "did not finish, and what needs them did not start"
                    self._say(f"{count} {what}; mend what the logs say, then give the same command again")
        super().close()

    def _read(self, record: logging.LogRecord, said: dict[str, Any], text: str) -> None:
        event, warned = said.get("event"), record.levelno >= logging.WARNING
        if event == LogEvent.RUN_INFO:
            self._begin({rule: count for rule, count in said["stats"].items() if rule != "total"})
        elif self._bar is None:
            if warned or (event is None and self._bar_wanted and not text.startswith(CHATTER)):
                self._write(record)
        elif event not in (None, LogEvent.ERROR):
            self._tell(event, said)
        elif text.startswith("Trying to restart job "):
            label = self._failed.pop(int(text.removesuffix(".").rpartition(" ")[2]), "a job")
            self._say(f"{label} is tried again")
        elif text.startswith("Exiting because a job"):
            self.close()  # what the Snakefile does after a failure comes below the bar
        elif warned and not text.startswith(SAID_TWICE):
            self._warn(self.format(record), text)

    def _warn(self, words: str, text: str) -> None:
        """Show a warning; an error of our workflow comes below the bar, without its places in the rules."""
        if text.startswith("WorkflowError"):
            self.close()
            words = "\n".join(line for line in words.splitlines() if not line.startswith('  File "'))
        self._say(words)

    def _tell(self, event: LogEvent, said: dict[str, Any]) -> None:
        """Show what happened to a job."""
        if event == LogEvent.JOB_INFO:
            stage, log = _stage(said["rule_name"]), next(iter(said["log"]), "")
            name = " ".join(map(str, said["wildcards"].values())) or said["rule_name"].partition("_")[2]
            self._running[said["jobid"]] = stage, f"{stage} {name}".strip(), log
            self._show()
        elif event == LogEvent.JOB_FINISHED:
            stage, _, log = self._running.pop(said["job_id"], ("", "", ""))
            if stage in self._all:
                self._finished(stage, log)
        elif event == LogEvent.JOB_ERROR:
            self._not_finished(said["jobid"], REFUSED.search(said["rule_msg"] or ""))

    def _begin(self, counts: dict[str, int]) -> None:
        plan = _plan()
        for rule, count in counts.items():
            if (stage := _stage(rule)) in SHOWN:
                self._all[stage] += count
                jobs = plan.get(stage, {}).values() if stage in STAGES else ()
                hours = [job["cost"]["hours"] for job in jobs if "cost" in job]
                self._seconds[stage] = max(SECONDS_OF_A_JOB, 3600 * sum(hours) / max(len(hours), 1))
        if self._dry:
            lines = [f"{stage:<11} {count:>5} jobs" for stage, count in self._all.items()]
            print(*lines, f"{'in all':<11} {self._all.total():>5} jobs; -p names each", sep="\n", file=self._file)
            self._silent = True
            return
        wanted, terminal, scale = self._bar_wanted and bool(self._all), self._file.isatty(), plan.get("scale", "")
        if wanted:
            self._say(f"scale {scale}: {self._all.total()} jobs to do; details in logs/{scale}/")
        self._bar = tqdm(
            desc=f"0 of {self._all.total()} jobs",
            total=sum(count * self._seconds[stage] for stage, count in self._all.items()),
            file=self._file if terminal else Lines(self._file),
            mininterval=1 if terminal else 30,
            miniters=0,
            smoothing=0,
            dynamic_ncols=terminal,
            disable=not wanted,
            bar_format="[{bar:20}] {desc}, {elapsed} gone, {remaining} left{postfix}",
            ascii="-#",
        )
        if terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def _finished(self, stage: str, log: str) -> None:
        """Show the warnings in the log of a job that is done, and its stage where that is done too."""
        self._done[stage] += 1
        for line in _lines(log):
            if line.startswith("warning: "):
                self._say(line)
        if self._done[stage] == self._all[stage] and not self._bar.disable:
            passed = tqdm.format_interval(self._bar.format_dict["elapsed"])
            self._say(f"{stage:<11} {self._all[stage]:>5} jobs done after {passed:>8}")
        self._show(self._seconds[stage])

    def _not_finished(self, job: int, refused: re.Match[str] | None) -> None:
        """Show the log of a job and how that ends; or why a cluster refused it, once for all jobs."""
        _, label, log = self._running.pop(job, ("", f"job {job}", ""))
        self._failed[job] = label
        if refused is None:
            last = [f"    {line}" for line in _lines(log) if line.strip()][-3:]
            self._say("\n".join([f"{label} did not finish; log {log or '(none)'}", *last]))
        elif (reason := " ".join((refused[1] or refused[2] or "").split())) not in self._refusals:
            self._refusals.add(reason)
            self._say(f"{label} could not be submitted: {reason}")
        self._show()

    def _show(self, seconds: float = 0.0) -> None:
        labels = [label for stage, label, _ in self._running.values() if stage in self._all]
        failed = [f"{len(self._failed)} failed"] if self._failed else []
        self._bar.set_description_str(f"{self._done.total()} of {self._all.total()} jobs", refresh=False)
        self._bar.set_postfix_str(", ".join(failed + labels), refresh=False)
        self._bar.update(seconds)

    def _tick(self) -> None:
        while not self._ended.wait(1):
            self._bar.refresh()

    def _say(self, text: str) -> None:
        tqdm.write(text, file=self._file)

    def _write(self, record: logging.LogRecord) -> None:
        text = self.format(record) or "None"
        if unknown := UNKNOWN.search(text):
            plan = _plan()
            files = [file for job in plan.get("draw", {}).values() for file in job["outputs"]]
            known = files if "/" in unknown[1] else [*plan.get("studies", {}), *SHOWN, "all"]
            text = f"no target {unknown[1]!r}{near_misses(unknown[1], known)}"
        if text.startswith("LockException"):
            text = "this folder is locked: another Snakemake is at work; wait for it, or `make unlock` where none is"
        if text != "None":
            self._file.write(f"{text}\n")
            self._file.flush()


def _check_cache() -> None:
    """Stop in one line where Snakemake's cache folder may not be written: it would stop with a traceback."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snakemake"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        print(f"error: {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None


def _plan() -> dict[str, Any]:
    with suppress(KeyError, UserError):  # another workflow than ours, say
        return read_plan(Path(os.environ[VARIABLE]))
    return {}


def _stage(rule: str) -> str:
    return "draw" if rule.startswith("draw") else rule


def _lines(log: str) -> list[str]:
    with suppress(OSError):
        return Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    return []
