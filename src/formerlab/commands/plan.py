"""The commands plan, status, check and rescue."""

import argparse
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_command, find_plan, load_plan
from formerlab.commands.gpus import NO_GPU, gpu_count
from formerlab.errors import UserError
from formerlab.files import write_json
from formerlab.plan.locate import read_plan
from formerlab.plan.staleness import Staleness, making_stage
from formerlab.progress import short
from formerlab.results.notes import SAFE
from formerlab.results.stages import MAKING, MEASURED, TIMED

SPARE_BYTES = 1_000_000_000
"""Bytes of disk space for token streams, rows, figures and the MLflow database, in addition to checkpoints."""


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = add_command(commands, plan)
    parser.add_argument("--shell", action="store_true", help="print the stage commands, for use without Snakemake")
    parser.add_argument("--seeds", action="store_true", help="show a row for every seed of a run")
    parser.add_argument("--command-line", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser = add_command(commands, status)
    parser.add_argument("--problems", action="store_true", help="only failed, killed and stopped jobs, with their logs")
    parser = add_command(commands, check)
    parser.add_argument("--here", action="store_true", help="also check that this machine has a GPU if jobs need one")
    parser = add_command(commands, rescue)
    parser.add_argument("--only", nargs="*", metavar="name", help="names of figures and tables; default: all")


def plan(arguments: argparse.Namespace) -> None:
    """Show size, FLOPs, memory, disk space and time of every run, their totals, and the number of other jobs."""
    if arguments.write is not None:  # called by plan/locate.py
        from formerlab.plan.build import build_plan

        write_json(arguments.write, build_plan(Path.cwd(), arguments.command_line or {}))
        return
    from formerlab.plan.show import shell, table

    path = find_plan(arguments)
    jobs = read_plan(path)
    print(shell(jobs, path) if arguments.shell else table(jobs, seeds=arguments.seeds))


def status(arguments: argparse.Namespace) -> None:
    """List finished, running, stopped, failed, stale and missing jobs."""
    from formerlab.plan.show import report

    print(report(load_plan(arguments), problems_only=arguments.problems))


def check(arguments: argparse.Namespace) -> None:
    """Check disk space, prepared data and, with --here, the GPU, and reset modification times in the future."""
    from formerlab.data.manifest import verify_all

    plan = load_plan(arguments)
    for line in plan.get("unread", ()):
        print(line, file=sys.stderr)
    results = Path(plan["results"])
    _reset_future_times(plan)
    staleness = Staleness(plan)
    stages = (*MAKING, *MEASURED, *TIMED)
    pending = [name for stage in stages for name in plan[stage] if not staleness.check(stage, name).current]
    if arguments.here and plan["device"] == "cuda" and pending and gpu_count() == 0:
        remedy = "set device: cpu, or run them on a machine with a GPU (--profile slurm)"
        raise UserError(f"{NO_GPU}, and {len(pending)} jobs need a GPU; {remedy}")
    missing = [job for run_id, job in plan["train"].items() if not staleness.check("train", run_id).current]
    needed_bytes = sum(job["cost"]["disk_bytes"] for job in missing) + (SPARE_BYTES if missing else 0)
    folder = next(path for path in (results.resolve(), *results.resolve().parents) if path.exists())
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        need = f"the {len(missing)} missing runs need about {short(needed_bytes)}B"
        remedy = "free disk space, or set the key `results` to a folder on another disk"
        raise UserError(f"{folder}: {short(free_bytes)}B free, but {need}; {remedy}")
    pending_runs = [run for stage in (*MAKING, *MEASURED) for run in plan[stage] if run in pending]
    for name in sorted({plan[making_stage(plan, run)][run]["data"] for run in pending_runs}):
        if staleness.check("data", name).current:
            verify_all(Path(plan["data"][name]["out"]), ignore_cache=True)


def _reset_future_times(plan: dict[str, Any]) -> None:
    """Reset modification times in the future, which occur if the clocks of two machines differ.

    Snakemake treats jobs that read such files as failed.
    """
    current_time = time.time()
    folders = (Path(plan["results"]), Path(plan["figures"]))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    future = [path for path in files if path.stat().st_mtime > current_time]
    for path in future:
        with suppress(PermissionError):
            os.utime(path, (current_time, current_time))
    if future:
        reset = f"modification times of {len(future)} files were in the future and are reset"
        print(f"{reset}; check the clocks", file=sys.stderr)


def rescue(arguments: argparse.Namespace) -> None:
    """Render missing figures and tables that have rows, and list failed jobs with their logs."""
    from formerlab.plan.show import report
    from formerlab.report.write import draw_each

    plan = load_plan(arguments)
    entries = {name: entry for job in plan["draw"].values() for name, entry in job["entries"].items()}
    entries = entries if arguments.only is None else {name: entries[name] for name in arguments.only}
    missing = [name for name, entry in entries.items() if not any(map(os.path.exists, entry["outputs"]))]
    results = Path(plan["results"])
    if missing and results.is_dir():
        draw_each(missing, results, Path(plan["figures"]), Staleness(plan).staleness_reason, skip_empty=True)
    print(report(plan, problems_only=True))
    print(SAFE)
