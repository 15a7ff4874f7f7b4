"""The plan as people read it, and as a shell runs it."""

import shlex
from pathlib import Path
from typing import Any

from formerlab.progress import short

COLUMNS = ("run", "parameters", "tokens", "FLOPs", "memory", "disk", "hours", "starts from")


def table(plan: dict[str, Any]) -> str:
    """Return every training run with its predicted cost, and the totals per study."""
    lines = [f"scale {plan['scale']}: {plan['description']}", ""]
    rows: list[tuple[str, ...]] = [COLUMNS]
    for name, study in plan["studies"].items():
        jobs = {run_id: job for run_id, job in plan["train"].items() if job["study"] == name}
        rows += [(run_id, *_cells(job["cost"]), job["init"] or "") for run_id, job in jobs.items()]
        total = study["totals"]
        rows.append((f"= {name}: {total['runs']} runs", "", *_cells(total)[1:], ""))
    rows.append((f"= all: {plan['totals']['runs']} runs", "", *_cells(plan["totals"])[1:], ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, 7) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    others = ", ".join(
        f"{len(plan[stage])} {stage}" for stage in ("data", "zeroshot", "prune", "translate", "complexity", "draw")
    )
    lines += ["", f"besides: {others} jobs; memory of a total is that of its largest run"]
    return "\n".join(lines)


def _cells(cost: dict[str, Any]) -> tuple[str, ...]:
    return (
        short(cost.get("parameters", 0)),
        short(cost["tokens"]),
        short(cost["flops"]) if cost["flops"] < 1e15 else f"{cost['flops']:.2e}",
        f"{short(cost['memory_bytes'])}B",
        f"{short(cost['disk_bytes'])}B",
        f"{cost['hours']:.3g}",
    )


def shell(plan: dict[str, Any], path: Path) -> str:
    """Return the stage commands whose results are missing, in an order that respects what each needs."""
    results = Path(plan["results"])
    lines = ["set -e", f"export FORMERLAB_PLAN={shlex.quote(str(path))}", f"export OMP_NUM_THREADS={plan['threads']}"]
    stages = [("data", name, Path(job["out"], "manifest.json")) for name, job in plan["data"].items()]
    stages += [("train", run_id, results / run_id / "run.json") for run_id in plan["train"]]
    for stage in ("zeroshot", "prune", "translate", "complexity"):
        stages += [(stage, run_id, results / run_id / f"{stage}.json") for run_id in plan[stage]]
    lines += [f"python -m formerlab {stage} {name}" for stage, name, product in stages if not product.exists()]
    lines += [
        f"python -m formerlab draw {name}" for name, job in plan["draw"].items() if not _all_exist(job["outputs"])
    ]
    return "\n".join(lines)


def _all_exist(paths: list[str]) -> bool:
    return all(Path(path).exists() for path in paths)
