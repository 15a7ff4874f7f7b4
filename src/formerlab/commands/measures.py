"""The verbs that measure: a finished run, or the speed of runs of a study; one for every such stage of the table."""

import argparse
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from formerlab.commands.as_planned import as_planned
from formerlab.commands.context import Plan, add_verb, job_of, load_plan
from formerlab.files import read_json, write_json, write_text
from formerlab.plan.judge import made_runs, maker
from formerlab.results.stages import MEASURED, TIMED, Stage
from formerlab.results.write import hashes_of_rows, write_rows

LARGEST_KEPT = 2**25
"""Bytes of the largest block that malloc keeps while a run is measured: sizes differ between policies."""


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    for stage in (*MEASURED.values(), *TIMED.values()):
        parser = add_verb(verbs, partial(measure, stage), stage.name, stage.text)
        parser.add_argument("name", metavar=stage.unit, help=f"the {stage.unit}, as the plan names it")


def measure(stage: Stage, arguments: argparse.Namespace) -> None:
    """Measure what the plan says, and say in a record, written last, what the rows came from."""
    plan, name = load_plan(arguments), arguments.name
    job = job_of(plan, stage.name, name)
    os.environ["OMP_NUM_THREADS"] = str(plan["threads"])  # a job that times holds more cores than it may use
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler counts memory, and would speak of it
    import torch

    folder, one = Path(plan["results"], name), stage.name in MEASURED
    with as_planned(plan, stage.name, name):
        torch.set_num_threads(plan["threads"])
        notes = (_measure_run if one else _time_runs)(stage, plan, name, folder)
        hashes = hashes_of_rows(folder, stage.tables)
        record = {"schema": 1, "code_hash": job["code"], "rows_sha256": hashes if one else next(iter(hashes.values()))}
        write_json(folder / stage.record, record | notes)


def _measure_run(stage: Stage, plan: Plan, name: str, folder: Path) -> dict[str, Any]:
    """Measure a finished run; of one that diverged the files are headers alone. Return what its record says of it."""
    from pydantic import TypeAdapter

    from formerlab.evaluation.language.suites import Suite
    from formerlab.evaluation.measurement import Measured
    from formerlab.kernels.native import keep_memory
    from formerlab.plan.measure import code_of_measuring
    from formerlab.training.any_run import AnyRun
    from formerlab.training.load import load_model
    from formerlab.training.run import Run

    job, record, began = plan[stage.name][name], read_json(folder / "run.json"), time.monotonic()
    notes: dict[str, Any] = {"id": name, "weights_sha256": record["weights_sha256"]}
    notes |= {key: job[key] for key in ("settings", "suites")}
    keep_memory(LARGEST_KEPT)
    if stage.models and record["status"] != "finished":
        for file, table in stage.tables.items():
            write_rows(folder / file, table.names, [])
        for file in stage.files:
            write_text(folder / file, "")
    else:
        model: Any = None
        if not stage.models:
            run: AnyRun = Run.model_validate(record["spec"])
        elif record["spec"]["model"]["kind"] == "released":
            from formerlab.integrations.huggingface.released_run import load_released_run

            model, run = load_released_run(folder, plan["device"])
        else:
            model, run = load_model(folder)
            model.to(plan["device"])
        suite: TypeAdapter[Any] = TypeAdapter(Suite)
        suites = [suite.validate_python(plan["suites"][asked]["spec"]) for asked in job["suites"]]
        measured = Measured(
            run=run,
            model=model,
            device=plan["device"],
            folder=folder,
            data=Path(plan["data"][plan[maker(plan, name)][name]["data"]]["out"]),
            label=f"{stage.name} {name}",
            suites={asked: plan["suites"][asked] | {"state": state} for asked, state in job["suites"].items()},
            belongs_to=(record["weights_sha256"], record["data"]["fingerprint"], job["suites"]),
            code_of=lambda settings: code_of_measuring(stage, run, settings, suites),
            notes=notes,
        )
        module, settings = stage.measuring
        module.measure(measured, settings.model_validate(job["settings"]))
    return notes | {"wall_time_s": time.monotonic() - began}


def _time_runs(stage: Stage, plan: Plan, study: str, folder: Path) -> dict[str, Any]:
    """Time runs of a study beside each other, trained or not. Return what the record says of it."""
    import torch

    from formerlab.kernels.native import keep_memory
    from formerlab.training.any_run import ReleasedRun
    from formerlab.training.provenance import circumstances
    from formerlab.training.run import Run

    job, device = plan[stage.name][study], torch.device(plan["device"])
    keep_memory()
    made, kinds = made_runs(plan), {run_id: ReleasedRun if run_id in plan["load"] else Run for run_id in job["runs"]}
    runs = [kind.model_validate(made[run_id]["spec"]) for run_id, kind in kinds.items()]
    loaders: dict[str, Any] = {}
    if "released" in stage.models:
        from formerlab.integrations.huggingface.released_run import load_released_model

        loaders["load"] = lambda run, device: load_released_model(run, str(device))
    (module, kind), (file,) = stage.measuring, stage.tables
    settings = kind.model_validate(job["settings"])
    notes: dict[str, Any] = module.measure(runs, settings, device, folder / file, **loaders)
    about = {"study": study, "configuration": job["configuration"], "threads": plan["threads"]}
    return about | notes | {"load": os.getloadavg()[0]} | circumstances(device)
