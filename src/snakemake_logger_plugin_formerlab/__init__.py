"""Snakemake's logger plugin `formerlab`: in place of a paragraph per job, a line per stage and a bar for the whole.

Snakemake finds it by the name of this package; profiles/default asks for it. The interface is that of the package
snakemake-interface-logger-plugins; the fields of each event are those that Snakemake 9 sends.
"""

import logging
import os
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from formerlab.errors import EXIT_USER_ERROR, UserError, near_misses
from formerlab.plan.locate import VARIABLE, read_plan
from formerlab.results.stages import STAGES
from snakemake_logger_plugin_formerlab.display import Display, by_stage

CHATTER = ("Assuming unrestricted shared filesystem", "host: ", "Building DAG", "Using shell", "None")
"""Beginnings of what Snakemake says before a run that tells a reader nothing."""
SAID_TWICE = ("RuleException", "WorkflowError: At least one job", "Exception in run_job")
"""Beginnings of what it says of a failed job beside the event of its failure, which names job and log."""
REFUSED = re.compile(
    r"sbatch failed\. The error message was '(.*?)'\.\n|submission failed with exception: (.*)", re.DOTALL
)
"""What the Slurm executor says of a job that could not be submitted, with Slurm's own words."""
UNKNOWN = re.compile(r"No rule to produce (\w+)\b")
"""What Snakemake says of a target that it does not know."""


class LogHandler(LogHandlerBase):
    """Show a run of the DAG in few lines; whatever else Snakemake is asked for, show as it would itself."""

    needs_rulegraph = writes_to_file = has_formatter = False
    writes_to_stream = True

    def __post_init__(self) -> None:
        _check_cache()
        asked = self.common_settings
        quiet = {str(about) for about in asked.quiet or ()}
        self._details = asked.verbose or asked.printshellcmds or asked.debug_dag
        self._silent = "all" in quiet and not asked.dryrun
        self._no_progress = "progress" in quiet
        self._stream = sys.stdout if asked.dryrun else sys.stderr
        self._dry, self._counted = asked.dryrun, False
        self._display: Display | None = None

    @property
    def has_filter(self) -> bool:
        """Return whether records are chosen here; else Snakemake gives this handler its own filter."""
        return not self._details

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or what it changes."""
        try:
            if self._details:
                self._write(record)
            elif not self._silent:
                self._read(record, vars(record), str(record.msg).replace("\n", " "))
        except BrokenPipeError:  # nobody reads any more, as behind `| head`
            self._silent = True
        except Exception:  # a display must not end the work
            self.handleError(record)

    def close(self) -> None:
        """End the line of the bar."""
        if self._display is not None:
            with suppress(BrokenPipeError):
                self._display.close()
        super().close()

    def _read(self, record: logging.LogRecord, said: dict[str, Any], text: str) -> None:
        event, warned = said.get("event"), record.levelno >= logging.WARNING
        if event == LogEvent.RUN_INFO:
            self._begin({rule: count for rule, count in said["stats"].items() if rule != "total"})
        elif self._counted:
            if text.startswith("This was a dry-run"):
                self._write(record)
        elif self._display is None:
            if warned or (event is None and not self._no_progress and not text.startswith(CHATTER)):
                self._write(record)
        elif event not in (None, LogEvent.ERROR):
            _tell(self._display, event, said)
        else:
            self._pass_on(self._display, record, text)

    def _pass_on(self, display: Display, record: logging.LogRecord, text: str) -> None:
        if text.startswith("Trying to restart job "):
            display.tried_again(int(text.removesuffix(".").rpartition(" ")[2]))
        elif text.startswith("Exiting because a job"):
            display.close()  # what the Snakefile does after a failure comes below the bar
        elif record.levelno >= logging.WARNING and not text.startswith(SAID_TWICE):
            display.say(self.format(record))

    def _begin(self, counts: dict[str, int]) -> None:
        """Show the bar; of a dry run, how many jobs of each stage it lists."""
        if not self._dry:
            self._display = Display(_plan(), counts, self._stream, bar=not self._no_progress)
            return
        found = by_stage(counts)
        lines = [f"{stage:<11} {count:>5} jobs" for stage, count in found.items()]
        self._stream.write("\n".join([*lines, f"{'in all':<11} {found.total():>5} jobs; -p names each\n"]))
        self._counted = True

    def _write(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if unknown := UNKNOWN.search(text or ""):
            known = [*_plan().get("studies", {}), *STAGES, "draw", "claims", "runs", "track", "all"]
            text = f"no target {unknown[1]!r}{near_misses(unknown[1], known)}"
        if text and text != "None":
            self._stream.write(f"{text}\n")
            self._stream.flush()


def _check_cache() -> None:
    """Stop in one line where Snakemake's cache folder may not be written: it would stop with a traceback."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "snakemake"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return
    except OSError as error:
        print(f"error: {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written", file=sys.stderr)
    raise SystemExit(EXIT_USER_ERROR)


def _plan() -> dict[str, Any]:
    try:
        return read_plan(Path(os.environ[VARIABLE]))
    except (KeyError, UserError):  # another workflow than ours, say
        return {}


def _tell(display: Display, event: LogEvent, said: dict[str, Any]) -> None:
    """Tell the display of a job."""
    if event == LogEvent.JOB_INFO:
        name = " ".join(map(str, said["wildcards"].values()))
        display.started(said["jobid"], said["rule_name"], name, log=next(iter(said["log"]), ""))
    elif event == LogEvent.JOB_FINISHED:
        display.finished(said["job_id"])
    elif event == LogEvent.JOB_ERROR:
        refused = REFUSED.search(said["rule_msg"] or "")
        display.failed(said["jobid"], next(filter(None, refused.groups())) if refused else "")
