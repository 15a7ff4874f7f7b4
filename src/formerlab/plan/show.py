"""Print the plan as a table, as shell commands, and as the states of its jobs.

A state is finished, diverged, running, stopped, failed, killed, stale or missing.
"""

import shlex
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

from tabulate import tabulate

from formerlab.errors import MAX_NAMES, some
from formerlab.kernels import COMPILERS, find_compiler
from formerlab.plan.staleness import RECORDS, Staleness, run_jobs
from formerlab.progress import duration, short
from formerlab.report.catalogue import failure_file
from formerlab.results.notes import read_note
from formerlab.results.schema import CLAIMS
from formerlab.results.stages import MEASURED, TIMED

OTHER_STAGES = ("data", *TIMED, *MEASURED, "draw")
SPARE_RETRIES = 3
"""Number of retries in addition to twice the predicted number of submissions."""
COLUMNS = ("run", "parameters", "tokens", "FLOPs", "memory", "disk", "time", "starts from")


def table(plan: dict[str, Any], *, seeds: bool = False) -> str:
    """Return a table of all runs with predicted costs; with `seeds`, it has a row per seed."""
    lines = [f"scale {plan['scale']}: {plan['description']}", ""]
    rows: list[tuple[str, ...]] = [COLUMNS]
    for name, study in plan["studies"].items():
        jobs = {run_id: job for run_id, job in run_jobs(plan).items() if job["study"] == name}
        rows += _rows(jobs, seeds)
        total = study["totals"]
        rows.append((f"= {name}: {total['runs']} runs", "", *_cells(total)[1:], ""))
    rows.append((f"= all: {plan['totals']['runs']} runs", "", *_cells(plan["totals"])[1:], ""))
    lines += aligned(rows, left=(0, len(COLUMNS) - 1))
    lines += [] if seeds else ["run x 3: three seeds with this cost each; --seeds shows one row per seed"]
    lines += _times(plan)
    lines += ["", *_hardware(plan), ""]
    further = ", ".join(f"{len(plan[stage])} {stage}" for stage in OTHER_STAGES if plan[stage])
    lines.append(f"Other jobs: {further}. Total memory is the maximum over runs.")
    for stage in MEASURED:
        if costs := [job["cost"] for job in plan[stage].values() if "cost" in job]:
            tokens, flops, hours = (sum(cost[key] for cost in costs) for key in ("tokens", "flops", "hours"))
            lines.append(f"{stage} reads {short(tokens)} tokens with {flops:.2e} FLOPs: {duration(hours)}")
    lines += [*(line for job in plan["data"].values() if (line := job["data_problem"])), *plan.get("unread", ())]
    return "\n".join(lines)


def _rows(jobs: dict[str, Any], seeds: bool) -> list[tuple[str, ...]]:
    """Return a row per run with the number of seeds and the cost of one seed, or a row per seed."""
    ids_by_row: dict[str, list[str]] = {}
    for run_id in jobs:
        ids_by_row.setdefault(run_id if seeds else run_id.rpartition("/")[0], []).append(run_id)
    rows = []
    for run, (first, *more_seeds) in ids_by_row.items():
        init = jobs[first]["init"] or ""
        name = f"{run} x {1 + len(more_seeds)}" if more_seeds else run
        rows.append((name, *_cells(jobs[first]["cost"]), init if seeds else init.rpartition("/")[0]))
    return rows


def _times(plan: dict[str, Any]) -> list[str]:
    """Return the total time of all runs and the time of the longest run."""
    if not plan["train"]:
        return []
    hours = plan["totals"]["hours"]
    run, cost = max(((run, job["cost"]) for run, job in plan["train"].items()), key=lambda item: item[1]["hours"])
    processors = f" on {count} processors" if (count := cost["processors"]) > 1 else ""
    total = f"{hours:.0f} hours" if hours >= 10 else duration(hours)
    return [
        f"Total times are sums over all processors (GPUs): {total} for all runs. "
        f"The longest run, {run}, takes {duration(cost['hours'])}{processors}."
    ]


def _hardware(plan: dict[str, Any]) -> list[str]:
    """Return lines about the hardware of the estimates, the runs that are too large, and the limits of cluster jobs."""
    lines = [f"Times and memory of runs are predicted for {plan['hardware']} (scale.hardware): {plan['basis']}."]
    by_need: dict[int | None, list[str]] = {}
    for run, gpus in plan["too_large"].items():
        by_need.setdefault(gpus, []).append(run)
    for count, runs in by_need.items():
        remedy = " and cannot be sharded over 64 or fewer GPUs; raise task.accumulate to lower the micro-batch size."
        if count:
            remedy = f"; set gpus: {count} to shard {'them' if runs[1:] else 'it'}."
        subject = f"Runs {', '.join(runs)} do" if runs[1:] else f"Run {runs[0]} does"
        lines.append(f"{subject} not fit on one {plan['hardware']}{remedy}")
    need, limit = submissions(plan), duration(plan["runtime_minutes"] / 60)
    return [
        *lines,
        f"A cluster job runs for at most {limit} (scale.runtime_minutes). A longer run saves a checkpoint, stops "
        f"and is submitted again: the longest run needs {need} submission{'s' if need > 1 else ''}, so the retries in "
        f"slurm/config.yaml must be at least {2 * need + SPARE_RETRIES}.",
    ]


def submissions(plan: dict[str, Any]) -> int:
    """Return the number of cluster jobs of maximum length that the longest run needs."""
    longest: float = max((job["cost"]["hours"] for job in plan["train"].values()), default=0.0)
    minutes: int = plan["runtime_minutes"]
    return max(1, ceil(60 * longest / minutes))


def aligned(rows: list[tuple[str, ...]], *, left: tuple[int, ...]) -> list[str]:
    """Return the rows as aligned lines; `left` are the indices of left-aligned columns."""
    sides = ["left" if column in left else "right" for column in range(len(rows[0]))]
    text: str = tabulate(rows, tablefmt="plain", colalign=sides, disable_numparse=True)
    return text.splitlines()


def _cells(cost: dict[str, Any]) -> tuple[str, ...]:
    return (
        short(cost.get("parameters", 0)),
        short(cost["tokens"]),
        short(cost["flops"]) if cost["flops"] < 1e15 else f"{cost['flops']:.2e}",
        f"{short(cost['memory_bytes'])}B",
        f"{short(cost['disk_bytes'])}B",
        duration(cost["hours"]),
    )


def shell(plan: dict[str, Any], path: Path) -> str:
    """Return the commands for all results that are not up to date, and for all figures, tables and verdicts.

    The last commands write the table of runs and track the runs.
    """
    lines = ["set -e", f"export FORMERLAB_PLAN={shlex.quote(str(path))}", f"export OMP_NUM_THREADS={plan['threads']}"]
    staleness = Staleness(plan)
    for stage in (stage for stage in RECORDS if stage != "exact"):
        for name in plan[stage]:
            lines += [] if staleness.check(stage, name).current else [f"python -m formerlab {stage} {name}"]
    lines += [f"python -m formerlab draw {' '.join(job['entries'])}" for job in plan["draw"].values()]
    if not staleness.check("exact", CLAIMS).current:
        lines.append("python -m formerlab exact")
    out = shlex.quote(plan["figures"])
    lines += [f"python -m formerlab {command} --out {out}" for command in ("claims", "runs")]
    return "\n".join([*lines, "python -m formerlab track"])


def states(plan: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return (stage, job, state, detail) of every job of the stages with records, and of failed figures and tables.

    A job without a note gets the state of its record.
    """
    staleness = Staleness(plan)
    rows: list[tuple[str, ...]] = []
    for stage in RECORDS:
        for name in plan[stage]:
            note = read_note(stage, staleness.folder(stage, name))
            if note is None:
                rows.append((stage, name, *staleness.check(stage, name)))
            else:
                log = f"; log {note['log']}" if note["log"] else ""
                rows.append((stage, name, note["state"], f"{note.get('reason', 'since ' + note['since'])}{log}"))
    return rows + [("draw", name, "failed", reason) for name, reason in failed_entries(plan)]


def failed_entries(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, detail) of the figures and tables that failed; the detail has the reason and the error file."""
    figures, names = Path(plan["figures"]), (name for job in plan["draw"].values() for name in job["entries"])
    return [
        (name, f"{failure_path.read_text(encoding='utf-8').splitlines()[-1]}; full error in {failure_path}")
        for name in names
        if (failure_path := failure_file(figures, name)).exists()
    ]


def report(plan: dict[str, Any], *, problems_only: bool = False) -> str:
    """Return job states and counts as text; `problems_only` lists only failed, killed and stopped jobs."""
    rows = states(plan)
    listed = [row for row in rows if not problems_only or row[2] in ("failed", "killed", "stopped")]
    if problems_only and not listed:
        return "no failed, killed or stopped jobs"
    lines = aligned(listed, left=(0, 1, 2, 3)) if listed else []
    counts = Counter(row[2] for row in rows)
    results = Path(plan["results"])
    existing_runs = {path.parent.relative_to(results).as_posix() for path in results.glob("*/*/seed*/run.json")}
    if unplanned := sorted(existing_runs - run_jobs(plan).keys()):
        lines.append(f"not in the plan, and therefore not in figures and counts: {some(unplanned, MAX_NAMES)}")
    if plan["device"] == "cpu" and not problems_only and find_compiler() is None:
        effect = "CPU kernels use plain torch, which is slower"
        lines.append(f"no C++ compiler found (tried {COMPILERS}): {effect}; install g++")
    counted = ", ".join(f"{n} {state}" for state, n in counts.items())
    return "\n".join([*lines, "", f"scale {plan['scale']}: {counted}"])
