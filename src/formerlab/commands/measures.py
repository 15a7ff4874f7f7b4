"""The verbs that measure: a finished run, or the speed of runs of a study; one for every such stage of the table."""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.as_planned import as_planned
from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.commands.gpus import own_gpus
from formerlab.files import read_json, sha256, write_json, write_text
from formerlab.plan.judge import made_run
from formerlab.results.notes import noted
from formerlab.results.stages import MEASURED, TIMED, Stage
from formerlab.results.write import hashes_of_rows, write_rows

if TYPE_CHECKING:
    from formerlab.training.any_run import AnyRun

SCHEMA = 1
LARGEST_KEPT = 2**25
"""Bytes of the largest block that malloc keeps while a run is measured: sizes differ between policies."""


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    for stage in MEASURED.values():
        add_verb(verbs, stage.name, partial(measure, stage), stage.text).add_argument("id", help="run")
    for stage in TIMED.values():
        add_verb(verbs, stage.name, partial(time_runs, stage), stage.text).add_argument("study", help="such as decay")


def measure(stage: Stage, arguments: argparse.Namespace) -> None:
    """Measure a finished run as the plan says; of one that diverged the files are headers alone.

    The record is written last, so a stage that has one is finished, and says what the rows came from.
    """
    import torch

    from formerlab.evaluation.measurement import Measured
    from formerlab.kernels.native import keep_memory
    from formerlab.results.read import is_released
    from formerlab.training.load import load_model
    from formerlab.training.run import Run

    plan = load_plan(arguments)
    job = job_of(plan, stage.name, arguments.id)
    folder = Path(plan["results"], arguments.id)
    with noted(stage.name, folder), as_planned(plan, stage.name, arguments.id), own_gpus(plan["device"]):
        torch.set_num_threads(plan["threads"])
        keep_memory(LARGEST_KEPT)
        record, began, notes = read_json(folder / "run.json"), time.monotonic(), dict[str, Any]()
        if stage.models and record["status"] != "finished":
            for file, table in stage.tables.items():
                write_rows(folder / file, table.names, [])
            for file in stage.files:
                write_text(folder / file, "")
        else:
            module = import_module(stage.import_path)
            model: Any = None
            if not stage.models:
                run: AnyRun = Run.model_validate(record["spec"])
            elif is_released(record):
                from formerlab.integrations.huggingface.released_run import load_released_run

                model, run = load_released_run(folder, plan["device"])
            else:
                model, run = load_model(folder)
                model.to(plan["device"])
            measured = Measured(
                run=run,
                model=model,
                device=plan["device"],
                folder=folder,
                data=Path(plan["data"][made_run(plan, arguments.id)["data"]]["out"]),
                label=f"{stage.name} {arguments.id}",
                suites={name: plan["suites"][name] | {"state": state} for name, state in job["suites"].items()},
                belongs_to=(record["weights_sha256"], record["data"]["fingerprint"], job["suites"]),
                code_of=_code_of(stage, run, [plan["suites"][name]["spec"] for name in job["suites"]]),
                notes=notes,
            )
            module.measure(measured, getattr(module, stage.settings).model_validate(job["settings"]))
        sources = {
            "schema": SCHEMA,
            "id": record["id"],
            "code_hash": job["code"],
            "weights_sha256": record["weights_sha256"],
            "rows_sha256": hashes_of_rows(folder, stage.tables),
            "wall_time_s": time.monotonic() - began,
        }
        asked = {key: job[key] for key in ("settings", "suites")}
        write_json(folder / stage.record, sources | asked | notes)


def _code_of(stage: Stage, run: "AnyRun", suites: Sequence[dict[str, Any]]) -> Callable[[Any], str]:
    """Return a function that gives the hash of the code of a stage for some settings."""
    from pydantic import TypeAdapter

    from formerlab.evaluation.language.suites import Suite
    from formerlab.plan.measure import code_of_measuring

    adapter: TypeAdapter[Any] = TypeAdapter(Suite)
    specs = [adapter.validate_python(suite) for suite in suites]
    return lambda settings: code_of_measuring(stage, run, settings, specs)


def time_runs(stage: Stage, arguments: argparse.Namespace) -> None:
    """Time runs of a study, trained or not, as the plan says; the record is written last."""
    plan = load_plan(arguments)
    job = job_of(plan, stage.name, arguments.study)
    os.environ["OMP_NUM_THREADS"] = str(plan["threads"])  # the job holds more cores than it may use
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler counts memory, and would speak of it
    import torch

    from formerlab.evaluation.timing.timing import circumstances
    from formerlab.kernels.native import keep_memory
    from formerlab.training.any_run import ReleasedRun
    from formerlab.training.run import Run

    folder, device = Path(plan["results"], arguments.study), torch.device(plan["device"])
    with noted(stage.name, folder), as_planned(plan, stage.name, arguments.study), own_gpus(plan["device"]):
        torch.set_num_threads(plan["threads"])
        keep_memory()
        runs = [
            (ReleasedRun if run_id in plan["load"] else Run).model_validate(made_run(plan, run_id)["spec"])
            for run_id in job["runs"]
        ]
        module, (file,) = import_module(stage.import_path), stage.tables
        settings = getattr(module, stage.settings).model_validate(job["settings"])
        loaders: dict[str, Any] = {}
        if "released" in stage.models:
            from formerlab.integrations.huggingface.released_run import load_released_model

            loaders["load"] = lambda run, device: load_released_model(run, str(device))
        notes = module.measure(runs, settings, device, folder / file, **loaders)
        record = {"schema": SCHEMA, "study": arguments.study, "code_hash": job["code"]}
        record |= {"configuration": job["configuration"], "rows_sha256": sha256(folder / file)}
        write_json(folder / stage.record, record | {"threads": plan["threads"]} | notes | circumstances(device))
