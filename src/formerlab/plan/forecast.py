"""What a plan would take on every processor of the table."""

from typing import Any

from formerlab.plan.cost import hours
from formerlab.plan.hardware import Hardware
from formerlab.plan.memory import memory_bytes
from formerlab.plan.processes import enough
from formerlab.plan.schema import Scale
from formerlab.training.run import Run

Plan = dict[str, Any]


def forecast(runs: list[Run], scale: Scale, table: dict[str, Hardware]) -> dict[str, Plan]:
    """Return hours per study, peak memory, price and the runs too large for one, for training on each processor.

    A run that is too large has the number of processors that hold it together, null where 64 do not.

    A measured speed of the scale (`flops_per_s`) speaks for its own processor alone.
    """
    return {
        name: _on(hardware, runs, scale if name == scale.hardware else scale.model_copy(update={"flops_per_s": None}))
        for name, hardware in table.items()
    }


def _on(hardware: Hardware, runs: list[Run], scale: Scale) -> Plan:
    first = {(run.study, run.name): run for run in runs}  # seeds cost the same
    hours_of = {name: hours(run, scale, hardware) for name, run in first.items()}
    bytes_of = {name: memory_bytes(run, hardware) for name, run in first.items()}
    needed = {name: enough(run, hardware) for name, run in first.items()}
    time = {run.id: hours_of[run.study, run.name] for run in runs}
    memory = {run.id: bytes_of[run.study, run.name] for run in runs}
    total = sum(time.values())
    return {
        "hours": {study: sum(time[run.id] for run in runs if run.study == study) for study in _studies(runs)},
        "hours_total": total,
        "memory_bytes": max(memory.values(), default=0),
        "basis": hardware.basis + ("; speed as scale.flops_per_s" if scale.flops_per_s else ""),
        "price": None if hardware.price is None else total * hardware.price,
        "too_large": {run.id: needed[run.study, run.name] for run in runs if needed[run.study, run.name] != 1},
    }


def _studies(runs: list[Run]) -> list[str]:
    return list(dict.fromkeys(run.study for run in runs))
