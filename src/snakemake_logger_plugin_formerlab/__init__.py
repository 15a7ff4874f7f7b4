"""Snakemake's logger plugin `formerlab`: in place of a paragraph per job, a line per stage and a bar for the whole.

Snakemake finds it by the name of this package; profiles/default asks for it. What is shown is decided in
`formerlab.plan.run_display`; here Snakemake's records are only read. The interface is that of the package
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
from formerlab.plan.run_display import UNITS, RunDisplay, job_counts

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

    needs_rulegraph = False
    writes_to_stream = True
    writes_to_file = False

    def __post_init__(self) -> None:
        _check_cache()
        asked = self.common_settings
        quiet = {str(about) for about in asked.quiet or ()}
        self._details = asked.verbose or asked.printshellcmds or asked.debug_dag
        self._dry = asked.dryrun
        self._silent = "all" in quiet and not asked.dryrun
        self._no_progress = "progress" in quiet
        self._stream = sys.stdout if asked.dryrun else sys.stderr
        self._display: RunDisplay | None = None
        self._cores: int | None = None
        self._counted = False

    @property
    def has_filter(self) -> bool:
        """Return whether records are chosen here; else Snakemake gives this handler its own filter."""
        return not self._details

    @property
    def has_formatter(self) -> bool:
        """Return False: records that are shown whole are written as Snakemake writes them."""
        return False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record, or what it changes."""
        try:
            if self._silent:
                pass
            elif self._details:
                self._write(record)
            elif self._dry and (self._counted or vars(record).get("event") == LogEvent.RUN_INFO):
                self._count(record)
            else:
                self._read(record, vars(record))
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

    def _read(self, record: logging.LogRecord, said: dict[str, Any]) -> None:
        event = said.get("event")
        if event == LogEvent.RESOURCES_INFO:
            self._cores = said.get("cores", self._cores)
        elif event == LogEvent.RUN_INFO:
            self._begin(said["stats"])
        elif self._display is None:
            spoken = event is None and not self._no_progress and not str(record.msg).startswith(CHATTER)
            if spoken or record.levelno >= logging.WARNING:
                self._write(record)
        elif event is None or event == LogEvent.ERROR:
            self._pass_on(self._display, record)
        else:
            _tell(self._display, event, said)

    def _count(self, record: logging.LogRecord) -> None:
        """Show how many jobs of each stage a dry run lists, and below that only that it was one."""
        if not self._counted:
            self._stream.write(f"{job_counts(vars(record)['stats'])}\n")
        elif str(record.msg).startswith("This was a dry-run"):
            self._write(record)
        self._counted = True

    def _pass_on(self, display: RunDisplay, record: logging.LogRecord) -> None:
        text = str(record.msg).replace("\n", " ")
        if text.startswith("Trying to restart job "):
            display.tried_again(int(text.removesuffix(".").rpartition(" ")[2]))
        elif text.startswith("Exiting because a job"):
            display.close()  # what the Snakefile does after a failure comes below the bar
        elif record.levelno >= logging.WARNING and not text.startswith(SAID_TWICE):
            display.say(self.format(record))

    def _begin(self, stats: dict[str, int]) -> None:
        counts = {rule: count for rule, count in stats.items() if rule != "total"}
        self._display = RunDisplay(_plan(), counts, self._cores, self._stream, bar=not self._no_progress)

    def _write(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if unknown := UNKNOWN.search(text or ""):
            text = f"no target {unknown[1]!r}{near_misses(unknown[1], [*_plan().get('studies', {}), *UNITS, 'all'])}"
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


def _tell(display: RunDisplay, event: LogEvent, said: dict[str, Any]) -> None:
    """Tell the display of a job."""
    if event == LogEvent.JOB_INFO:
        name = " ".join(map(str, said["wildcards"].values()))
        display.started(said["jobid"], said["rule_name"], name, log=next(iter(said["log"]), ""))
    elif event == LogEvent.JOB_FINISHED:
        display.finished(said["job_id"])
    elif event == LogEvent.JOB_ERROR:
        refused = REFUSED.search(said["rule_msg"] or "")
        display.failed(said["jobid"], refused=next(filter(None, refused.groups())) if refused else "")
