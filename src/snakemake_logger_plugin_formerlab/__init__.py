"""Snakemake's logger plugin `formerlab`: one line per stage and one progress bar.

Snakemake finds the plugin by the name of this package; profiles/default selects it.
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
from formerlab.plan.locate import PLAN_VARIABLE, read_plan
from formerlab.progress import LogWriter
from formerlab.results.stages import STAGES

CHATTER = ("Assuming unrestricted shared filesystem", "host: ", "Building DAG", "Using shell", "None")
"""Prefixes of Snakemake's uninformative messages before a run."""
REPEATED = ("RuleException", "WorkflowError: At least one job", "Exception in run_job")
"""Prefixes of messages about a failed job that repeat the JOB_ERROR event, which names job and log."""
REFUSED = re.compile(r"sbatch failed\. The error message was '(.*?)'\.\n|submission failed with exception: (.*)", re.S)
"""The Slurm executor's message about a job that could not be submitted; one of the groups contains Slurm's message."""
UNKNOWN = re.compile(r"No rule to produce (\S+)")
"""Snakemake's message about an unknown target."""
DAG_STAGES = {*STAGES, "draw", "claims", "runs", "track"}
"""The stages of the DAG; other rules only request files."""
SECONDS_OF_A_JOB = 4.0
"""Assumed seconds of a job whose cost the plan does not predict."""


class LogHandler(LogHandlerBase):
    """Show a run or dry run of the DAG in few lines; with --verbose, -p or --debug-dag, show all messages."""

    needs_rulegraph = writes_to_file = has_formatter = False
    writes_to_stream = has_filter = True

    def __post_init__(self) -> None:
        _check_cache()
        settings = self.common_settings
        quiet = {str(topic) for topic in settings.quiet or ()}
        self.has_filter = not (settings.verbose or settings.printshellcmds or settings.debug_dag)
        self._silent, self._bar_wanted = "all" in quiet and not settings.dryrun, "progress" not in quiet
        self._dry = settings.dryrun
        self._file = sys.stdout if settings.dryrun else sys.stderr
        self._all, self._done, self._seconds = Counter[str](), Counter[str](), dict[str, float]()
        self._running: dict[int, tuple[str, str, str]] = {}  # job id to stage, label and log
        self._failed: dict[int, str] = {}  # job id to label
        self._refusals: set[str] = set()
        self._bar: Any = None  # the tqdm bar, which is created when the jobs are counted
        self._ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or update the bar with it."""
        try:
            if self.has_filter and not self._silent:
                self._show_record(record, vars(record), str(record.msg).replace("\n", " "))
            elif not self._silent:
                self._write(record)
        except BrokenPipeError:  # the reader has closed the pipe, as in `| head`
            self._silent = True
        except Exception:  # an error of the display must not end the run
            self.handleError(record)

    def close(self) -> None:
        """Show the final state and, if jobs failed, the remedy."""
        if self._bar is not None and not self._ended.is_set():
            self._ended.set()
            with suppress(BrokenPipeError):
                self._update()
                self._bar.close()
                if self._failed:
                    count = "1 job" if len(self._failed) == 1 else f"{len(self._failed)} jobs"
                    state = "did not finish, so dependent jobs did not start"
                    self._print(f"{count} {state}; fix the errors in the logs and run the same command again")
        super().close()

    def _show_record(self, record: logging.LogRecord, fields: dict[str, Any], text: str) -> None:
        event, warned = fields.get("event"), record.levelno >= logging.WARNING
        if event == LogEvent.RUN_INFO:
            self._begin({rule: count for rule, count in fields["stats"].items() if rule != "total"})
        elif self._bar is None:
            if warned or (event is None and self._bar_wanted and not text.startswith(CHATTER)):
                self._write(record)
        elif event not in (None, LogEvent.ERROR):
            self._show_job(event, fields)
        elif text.startswith("Trying to restart job "):
            label = self._failed.pop(int(text.removesuffix(".").rpartition(" ")[2]), "a job")
            self._print(f"{label} is restarted")
        elif text.startswith("Exiting because a job"):
            self.close()  # output of the Snakefile's onerror must be below the bar
        elif warned and not text.startswith(REPEATED):
            self._warn(self.format(record), text)

    def _warn(self, message: str, text: str) -> None:
        """Show a warning; close the bar before a WorkflowError, and omit lines that name files of the workflow."""
        if text.startswith("WorkflowError"):
            self.close()
            message = "\n".join(line for line in message.splitlines() if not line.startswith('  File "'))
        self._print(message)

    def _show_job(self, event: LogEvent, fields: dict[str, Any]) -> None:
        """Show the start, end or failure of a job."""
        if event == LogEvent.JOB_INFO:
            stage, log = _stage(fields["rule_name"]), next(iter(fields["log"]), "")
            name = " ".join(map(str, fields["wildcards"].values())) or fields["rule_name"].partition("_")[2]
            self._running[fields["jobid"]] = stage, f"{stage} {name}".strip(), log
            self._update()
        elif event == LogEvent.JOB_FINISHED:
            stage, _, log = self._running.pop(fields["job_id"], ("", "", ""))
            if stage in self._all:
                self._finished(stage, log)
        elif event == LogEvent.JOB_ERROR:
            self._not_finished(fields["jobid"], REFUSED.search(fields["rule_msg"] or ""))

    def _begin(self, counts: dict[str, int]) -> None:
        """Print the number of jobs and create the bar; a dry run prints the number of jobs per stage."""
        plan = _plan()
        for rule, count in counts.items():
            if (stage := _stage(rule)) in DAG_STAGES:
                self._all[stage] += count
                jobs = plan.get(stage, {}).values() if stage in STAGES else ()
                hours = [job["cost"]["hours"] for job in jobs if "cost" in job]
                self._seconds[stage] = max(SECONDS_OF_A_JOB, 3600 * sum(hours) / max(len(hours), 1))
        if self._dry:
            lines = [f"{stage:<11} {count:>5} jobs" for stage, count in self._all.items()]
            print(*lines, f"{'total':<11} {self._all.total():>5} jobs; -p lists them", sep="\n", file=self._file)
            self._silent = True
            return
        wanted, terminal, scale = self._bar_wanted and bool(self._all), self._file.isatty(), plan.get("scale", "")
        if wanted:
            self._print(f"scale {scale}: {self._all.total()} jobs to do; details in logs/{scale}/")
        self._bar = tqdm(
            desc=f"0 of {self._all.total()} jobs",
            total=sum(count * self._seconds[stage] for stage, count in self._all.items()),
            file=self._file if terminal else LogWriter(self._file),
            mininterval=1 if terminal else 30,
            miniters=0,
            smoothing=0,
            dynamic_ncols=terminal,
            disable=not wanted,
            bar_format="[{bar:20}] {desc}, {elapsed} elapsed, {remaining} left{postfix}",
            ascii="-#",
        )
        if terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def _finished(self, stage: str, log: str) -> None:
        """Show the warnings in the log of a finished job, and its stage if all jobs of the stage are done."""
        self._done[stage] += 1
        for line in _lines(log):
            if line.startswith("warning: "):
                self._print(line)
        if self._done[stage] == self._all[stage] and not self._bar.disable:
            elapsed = tqdm.format_interval(self._bar.format_dict["elapsed"])
            self._print(f"{stage:<11} {self._all[stage]:>5} jobs done after {elapsed:>8}")
        self._update(self._seconds[stage])

    def _not_finished(self, job: int, refused: re.Match[str] | None) -> None:
        """Show the log path of a failed job and its last lines, or the reason of a refused submission once."""
        _, label, log = self._running.pop(job, ("", f"job {job}", ""))
        self._failed[job] = label
        if refused is None:
            last = [f"    {line}" for line in _lines(log) if line.strip()][-3:]
            self._print("\n".join([f"{label} did not finish; log {log or '(none)'}", *last]))
        elif (reason := " ".join((refused[1] or refused[2] or "").split())) not in self._refusals:
            self._refusals.add(reason)
            self._print(f"{label} could not be submitted: {reason}")
        self._update()

    def _update(self, seconds: float = 0.0) -> None:
        """Update the texts of the bar, and advance it by the predicted seconds of a finished job."""
        labels = [label for stage, label, _ in self._running.values() if stage in self._all]
        failed = [f"{len(self._failed)} failed"] if self._failed else []
        self._bar.set_description_str(f"{self._done.total()} of {self._all.total()} jobs", refresh=False)
        self._bar.set_postfix_str(", ".join(failed + labels), refresh=False)
        self._bar.update(seconds)

    def _tick(self) -> None:
        while not self._ended.wait(1):
            self._bar.refresh()

    def _print(self, text: str) -> None:
        tqdm.write(text, file=self._file)

    def _write(self, record: logging.LogRecord) -> None:
        text = self.format(record) or "None"
        if unknown := UNKNOWN.search(text):
            plan = _plan()
            files = [file for job in plan.get("draw", {}).values() for file in job["outputs"]]
            targets = files if "/" in unknown[1] else [*plan.get("studies", {}), *DAG_STAGES, "all"]
            text = f"no target {unknown[1]!r}{near_misses(unknown[1], targets)}"
        if text.startswith("LockException"):
            text = "this folder is locked; wait for the running Snakemake or, if there is none, run `make unlock`"
        if text != "None":
            self._file.write(f"{text}\n")
            self._file.flush()


def _check_cache() -> None:
    """Exit with one line if Snakemake's cache folder is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snakemake"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        print(f"error: {cache}: {error.strerror}; set XDG_CACHE_HOME to a writable folder", file=sys.stderr)
        raise SystemExit(EXIT_USER_ERROR) from None


def _plan() -> dict[str, Any]:
    with suppress(KeyError, UserError):  # another workflow may use this plugin
        return read_plan(Path(os.environ[PLAN_VARIABLE]))
    return {}


def _stage(rule: str) -> str:
    return "draw" if rule.startswith("draw") else rule


def _lines(log: str) -> list[str]:
    with suppress(OSError):
        return Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    return []
