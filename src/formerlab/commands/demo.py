"""The demo: the whole DAG, the report, and where everything is."""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from formerlab.commands.context import given_values
from formerlab.commands.report import write_report
from formerlab.errors import EXIT_STOPPED_EARLY, UserError
from formerlab.files import write_text
from formerlab.plan.judge import Judge
from formerlab.plan.locate import ensure_plan, read_plan
from formerlab.results.notes import SAFE, interrupt

SECONDS_TO_SAVE = 1.2
"""What a stage has to save its work when the demo is stopped; one that is slower goes on from its last checkpoint."""
SHELLS = ("bash", "sh", "dash")
LOCKS = Path(".snakemake", "locks")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


def run(arguments: argparse.Namespace) -> int:
    """Run all jobs, write report.html, print the headline tables; return the exit status of the DAG.

    Ctrl-C ends all within two seconds, and the last thing said is that nothing is lost.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # they would not reach the jobs otherwise
        signal.signal(number, interrupt)
    try:
        return _run(arguments)
    except KeyboardInterrupt as reason:
        print(f"\n{SAFE}", file=sys.stderr)
        # At Ctrl-C make ends by itself, and would report any status but 0 below that line.
        return 0 if not reason.args and "MAKELEVEL" in os.environ else EXIT_STOPPED_EARLY


def _run(arguments: argparse.Namespace) -> int:
    given = given_values(arguments)
    plan = read_plan(ensure_plan(Path.cwd(), given))
    before = _products(plan)
    status = _snakemake(given, "--cores", str(arguments.cores), "--keep-going")
    if status and any(LOCKS.glob("*.lock")):
        raise UserError(
            "another Snakemake is at work in this folder: wait for it; where none is, call `snakemake --unlock`"
        )
    results, changed = Path(plan["results"]), _products(plan) != before
    report, text = results / "report.html", results / "headline.txt"
    if results.is_dir():
        if changed or not report.exists():
            _report(plan, report)
        if changed or not text.exists():
            from formerlab.report.headline import headline

            write_text(text, headline(results, Judge(plan).objection))
        print(f"\n{text.read_text(encoding='utf-8')}")
        print(_places(plan, report))
    if status:
        print(f"\nNot all of it was made; `{_status_of(plan)}` says what is left", file=sys.stderr)
    return status


def _snakemake(given: dict[str, Any], *words: str) -> int:
    """Call Snakemake on the same configuration, in a group of its own: Ctrl-C does not reach it and its jobs."""
    config = ["--config", *(f"{key}={_as_yaml(value)}" for key, value in given.items())] if given else []
    command = [sys.executable, "-m", "snakemake", *words, *config]
    locks = set(LOCKS.glob("*"))
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # from here on it is a matter of seconds
            signal.signal(number, signal.SIG_IGN)
        _stop(process)
        for lock in set(LOCKS.glob("*")) - locks:  # which Snakemake cannot take away any more
            lock.unlink()
        raise


def _stop(snakemake: "subprocess.Popen[bytes]") -> None:
    """End Snakemake and its jobs; the stages may save their work first.

    Snakemake goes before them, and so do the shells in which they run: they would report every stage as failed.
    """
    family = []
    for one in psutil.Process(snakemake.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            family.append((one, one.name(), one.ppid()))
    shells = {one.pid for one, name, _ in family if name in SHELLS}
    snakemake.kill()
    snakemake.wait()
    for one, name, parent in family:
        with suppress(psutil.NoSuchProcess):
            if one.pid in shells:
                one.kill()
            elif name != "tee" and parent in {snakemake.pid, *shells}:
                one.terminate()
    patience = time.monotonic() + SECONDS_TO_SAVE
    while any(_is_at_work(one) for one, _, _ in family) and time.monotonic() < patience:
        time.sleep(0.02)
    for one, _, _ in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    with suppress(ProcessLookupError):  # whoever was started meanwhile
        os.killpg(snakemake.pid, signal.SIGKILL)


def _is_at_work(process: psutil.Process) -> bool:
    """Return whether a process has not ended; a zombie has ended."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _as_yaml(value: Any) -> str:
    """Return a value in one line; other than JSON, YAML reads small numbers back as numbers."""
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=1 << 20).strip()


def _report(plan: dict[str, Any], path: Path) -> None:
    try:
        write_report(plan, path)
    except Exception as error:  # hours of results are told of whatever one page stumbles over
        print(f"warning: {path} was not written ({error}); tables and figures are not affected", file=sys.stderr)


def _products(plan: dict[str, Any]) -> dict[str, float]:
    """Return when each figure and table was drawn; a report shows nothing else."""
    paths = [Path(path) for job in plan["draw"].values() for path in job["outputs"]]
    return {str(path): path.stat().st_mtime for path in paths if path.exists()}


def _places(plan: dict[str, Any], report: Path) -> str:
    rows = [
        ("figures and tables", plan["figures"] + "/"),
        ("rows of every run", plan["results"] + "/"),
        ("report", str(report) if report.exists() else "python -m formerlab report"),
        ("MLflow UI", "python -m formerlab ui"),
        ("what ran, what is stale", _status_of(plan)),
    ]
    return "\n".join(f"{name:<24} {place}" for name, place in rows)


def _status_of(plan: dict[str, Any]) -> str:
    return f"python -m formerlab status --scale {plan['scale']}"
