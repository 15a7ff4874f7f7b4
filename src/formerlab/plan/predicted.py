"""What the cost model predicted of finished runs beside what they took."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.files import write_text
from formerlab.plan.cost import hours
from formerlab.plan.hardware import Hardware, choose, hardware_table
from formerlab.plan.memory import memory_bytes
from formerlab.plan.show import aligned
from formerlab.plan.sources import Sources
from formerlab.results.read import Results, is_released
from formerlab.results.write import write_rows
from formerlab.training.run import Run

COLUMNS = (
    *("run", "parameters", "tokens", "flops", "hardware"),
    *("predicted_s", "measured_s", "time_ratio", "predicted_mb", "measured_mb", "memory_ratio"),
)
BASELINE = """
import psutil
import formerlab.training.stage
print(psutil.Process().memory_info().rss)
"""
"""Imports of a training process. Its largest size so far would be that of the process which started it."""

Row = tuple[str | int | float, ...]


def compare(results: Path, sources: Sources, baseline: float) -> list[Row]:
    """Return a row of `COLUMNS` per finished run below `results`.

    Time is that of the whole run without imports. Memory is the peak, in MiB: on a CPU resident memory less the
    `baseline`, that of the imports. A ratio is measured over predicted.
    """
    hardware = choose(hardware_table(sources.config_layers), sources.scale.hardware)
    records = [record for record in Results(results).records() if not is_released(record)]
    if not records:
        raise UserError(f"{results}: no finished run; run the DAG for this scale first")
    return [_row(record, sources, hardware, baseline) for record in records]


def _row(record: dict[str, Any], sources: Sources, hardware: Hardware, baseline: float) -> Row:
    run = Run.model_validate(record["spec"])
    seconds = 3600 * hours(run, sources.scale, hardware)
    memory = memory_bytes(run, hardware) / 2**20
    measured_s = record["wall_time_s"]
    measured_mb = record["peak_memory_bytes"] / 2**20 - baseline
    times = (round(seconds, 1), round(measured_s, 1), round(measured_s / seconds, 3))
    memories = (round(memory, 1), round(measured_mb, 1), round(measured_mb / memory, 3))
    return (run.id, record["parameters"], run.tokens, run.flops, sources.scale.hardware, *times, *memories)


def import_mebibytes() -> float:
    """Return the resident memory of a process that has imported what training needs, MiB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", BASELINE], capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout) / 2**20


def text(results: Path, rows: list[Row], baseline: float) -> str:
    """Return the rows as an aligned table, below what they are and which is furthest off."""
    worst = {name: _worst([row[COLUMNS.index(name)] for row in rows]) for name in ("time_ratio", "memory_ratio")}
    return "\n".join(
        [
            f"Cost model and finished runs, {results}: {len(rows)} runs. A ratio is measured over predicted.",
            f"Furthest off: time {worst['time_ratio']:.2f}, memory {worst['memory_ratio']:.2f}. "
            f"Memory is without the {baseline:.0f} MiB of the imports.",
            "",
            *aligned([COLUMNS, *(tuple(map(str, row)) for row in rows)], left=(0,)),
        ]
    )


def write(out: Path, rows: list[Row], table: str) -> None:
    """Write predicted.csv and, with the table, predicted.md into a folder."""
    write_rows(out / "predicted.csv", COLUMNS, rows)
    write_text(out / "predicted.md", f"```\n{table}\n```\n")


def _worst(ratios: list[Any]) -> float:
    """Return the ratio furthest from 1, in either direction."""
    return float(max(ratios, key=lambda ratio: max(ratio, 1 / ratio)))
