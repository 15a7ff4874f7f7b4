"""The command `demo`: run all jobs, write the report and list the outputs."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from formerlab.commands.context import add_command, command_line_config
from formerlab.commands.results import write_report
from formerlab.errors import EXIT_STOPPED_EARLY, EXIT_USER_ERROR, UserError
from formerlab.plan.locate import ensure_plan, read_plan
from formerlab.plan.staleness import Staleness
from formerlab.results.notes import SAFE

SECONDS_TO_SAVE = 1.2
"""Time in seconds in which a stage can save its work when the demo is stopped."""
LOCKS = Path(".snakemake", "locks")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}


def add_parsers(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, demo)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)


def demo(arguments: argparse.Namespace) -> None:
    """Run all jobs of a scale and show the results.

    Ctrl-C ends all jobs within two seconds.
    """
    try:
        status = _run(arguments)
    except KeyboardInterrupt as reason:
        print(f"\n{SAFE}", file=sys.stderr)
        # Ctrl-C also ends make, which would print an error for any status except 0.
        status = 0 if not reason.args and "MAKELEVEL" in os.environ else EXIT_STOPPED_EARLY
    sys.exit(status)


def _run(arguments: argparse.Namespace) -> int:
    """Run all jobs, write report.html and print the headline tables; return the exit status of the DAG."""
    from formerlab.report.headline import headline

    overrides = command_line_config(arguments)
    if arguments.plan is not None:
        raise UserError("--plan: demo makes its own plan; give --scale, --set or --overlay")
    plan = read_plan(ensure_plan(Path.cwd(), overrides))
    status = _snakemake(overrides, "--cores", str(arguments.cores), "--keep-going")
    if status and any(LOCKS.glob("*.lock")):
        return EXIT_USER_ERROR  # Snakemake printed the error
    results, options = Path(plan["results"]), _plan_options(plan["scale"], arguments)
    status_command = f"python -m formerlab status {options}"
    report = results / "report.html"
    if results.is_dir():
        try:
            write_report(plan, report)
        except Exception as error:  # a failed report must not hide the results
            print(f"warning: {report} was not written ({error}); tables and figures are not affected", file=sys.stderr)
        print(f"\n{headline(results, Staleness(plan).staleness_reason)}")
        rows = {
            "figures and tables": plan["figures"] + "/",
            "rows of all runs": plan["results"] + "/",
            "report": str(report) if report.exists() else f"python -m formerlab report {options}",
            "MLflow UI": f"python -m formerlab ui {options}",
            "states of all jobs": status_command,
        }
        print("\n".join(f"{name:<24} {value}" for name, value in rows.items()))
    if status:
        print(f"\nSome results are missing; `{status_command}` lists them", file=sys.stderr)
    return status


def _plan_options(scale: str, arguments: argparse.Namespace) -> str:
    """Return the options with which other commands find the plan of this demo."""
    overlay = ["--overlay", arguments.overlay] if arguments.overlay else []
    return shlex.join(["--scale", scale, *overlay, *(word for item in arguments.set for word in ("--set", item))])


def _snakemake(overrides: dict[str, Any], *options: str) -> int:
    """Call Snakemake with the same configuration in a new process group, which does not receive Ctrl-C.

    Return its exit status.
    """
    # Write each value as one line of YAML; the YAML parser would read JSON's `1e-05` as text.
    texts = {
        key: value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=1 << 20).strip()
        for key, value in overrides.items()
    }
    config = ["--config", *(f"{key}={text}" for key, text in texts.items())] if overrides else []
    command = [sys.executable, "-m", "snakemake", *options, *config]
    locks = set(LOCKS.glob("*"))
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # do not interrupt the cleanup
            signal.signal(number, signal.SIG_IGN)
        _stop(process)
        for lock in set(LOCKS.glob("*")) - locks:  # Snakemake was killed and cannot remove it
            lock.unlink()
        raise


def _stop(snakemake: "subprocess.Popen[bytes]") -> None:
    """Kill Snakemake, then interrupt its jobs and kill them after `SECONDS_TO_SAVE`.

    Snakemake is killed first, because it would report every interrupted job as failed.
    """
    jobs = psutil.Process(snakemake.pid).children(recursive=True)
    snakemake.kill()
    snakemake.wait()
    with suppress(ProcessLookupError):
        os.killpg(snakemake.pid, signal.SIGINT)  # `tee -i`, which writes the log of a stage, ignores the signal
        psutil.wait_procs(jobs, timeout=SECONDS_TO_SAVE)
        os.killpg(snakemake.pid, signal.SIGKILL)
