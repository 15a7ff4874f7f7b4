"""The commands of the stages data, train and load, and of all measurements."""

import argparse
import dataclasses
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from formerlab.commands.context import Plan, add_command, find_job, find_plan, load_plan, planned_job
from formerlab.commands.gpus import end_all_on_failure, locked_gpus, train_distributed
from formerlab.errors import UserError
from formerlab.files import read_record, sha256, variable, write_record, write_text
from formerlab.plan.locate import read_plan
from formerlab.plan.staleness import Staleness, making_stage, run_jobs
from formerlab.results.stages import MEASURED, STAGES, TIMED, Stage
from formerlab.results.write import hashes_of_rows, write_rows

MAX_REUSED_BYTES = 2**25
"""Maximum size of blocks that malloc keeps for reuse while a run is measured."""


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = add_command(commands, data, text=STAGES["data"].description)
    parser.add_argument("name", help="name of the data set, such as text")

    parser = add_command(commands, train, text=STAGES["train"].description)
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    text = "save a checkpoint and stop before this time limit"
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help=text)
    text = "stop this long before the time limit; default 30"
    parser.add_argument("--margin", type=float, default=30.0, metavar="SECONDS", help=text)
    text = "minimum time between checkpoints; default 60"
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help=text)
    parser.add_argument("--deterministic", action="store_true", help="bit-identical results on a GPU, but slower")

    parser = add_command(commands, load, text=STAGES["load"].description)
    parser.add_argument("id", help="run, such as decay/released-smollm2-135m-instruct/seed0")

    for stage in (*MEASURED.values(), *TIMED.values()):
        parser = add_command(commands, partial(measure, stage), stage.name, stage.description)
        parser.add_argument("name", metavar=stage.unit, help=f"name of the {stage.unit} in the plan")


def data(arguments: argparse.Namespace) -> None:
    """Prepare one data set of the plan."""
    from pydantic import TypeAdapter

    from formerlab.data import prepare
    from formerlab.data.any_data import Data

    plan = load_plan(arguments)
    job = find_job(plan, "data", arguments.name)
    if job["data_problem"]:
        raise UserError(job["data_problem"])
    with planned_job(plan, "data", arguments.name):
        spec: Any = TypeAdapter(Data).validate_python(job["spec"])
        prepare(arguments.name, spec, Path(job["out"]), code_hash=job["code"])


def train(arguments: argparse.Namespace) -> None:
    """Train one run of the plan."""
    from formerlab.training.run import Run
    from formerlab.training.runtime import RuntimeConfig
    from formerlab.training.stage import train_stage

    path = find_plan(arguments)
    plan = read_plan(path)
    job = find_job(plan, "train", arguments.id)
    runtime = RuntimeConfig(
        threads=job["threads"],
        device=plan["device"],
        time_limit_s=arguments.time_limit,
        margin_s=arguments.margin,
        checkpoint_seconds=arguments.checkpoint_seconds,
        startup_s=time.time() - psutil.Process().create_time(),
        code_hash=job["code"],
        deterministic=arguments.deterministic,
        keep_optimizer=job["keep_optimizer"],
    )
    out = Path(plan["results"], arguments.id)
    gpus = job.get("gpus", 1)
    if gpus > 1 and variable("RANK") is None:
        with locked_gpus(plan["device"], gpus):
            train_distributed(path, job, arguments, gpus, out)
        return
    parent = Path(plan["results"], job["init"]) if job["init"] else None
    with end_all_on_failure(), planned_job(plan, "train", arguments.id) as current:
        run, extra = Run.model_validate(job["spec"]), dict[str, Any]()
        if job.get("equal_time"):
            steps, extra = _steps_of_equal_time(plan, job)
            run = run.model_copy(update={"steps": steps})
        runtime = dataclasses.replace(runtime, replace=not current, extra=extra)
        train_stage(run, Path(plan["data"][job["data"]]["out"]), out, parent=parent, runtime=runtime)


def load(arguments: argparse.Namespace) -> None:
    """Load the released model of one run of the plan."""
    plan = load_plan(arguments)
    job = find_job(plan, "load", arguments.id)
    if Staleness(plan).check("load", arguments.id).current:
        print(f"{arguments.id}: already loaded")
        return
    from formerlab.integrations.huggingface.released_run import load_stage
    from formerlab.training.any_run import ReleasedRun

    with planned_job(plan, "load", arguments.id):
        run, data = ReleasedRun.model_validate(job["spec"]), Path(plan["data"][job["data"]]["out"])
        out = Path(plan["results"], arguments.id)
        load_stage(run, data, out, device=plan["device"], threads=plan["threads"], code_hash=job["code"])


def _steps_of_equal_time(plan: dict[str, Any], job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the number of steps of an equal-time run from measured step times, and entries of the record."""
    from formerlab.evaluation.timing.speed import EqualTime

    rows, planned = Path(plan["results"], job["study"], "speed.csv"), job["spec"]["steps"]
    equal = EqualTime.model_validate(job["equal_time"])
    ratio = equal.ratio(rows)
    steps = max(1, round(planned * ratio))
    comparison = f"a step of {equal.arm} takes {ratio:.4f} times as long as a step of {equal.reference}"
    print(f"{comparison}, so this run trains for {steps} steps", file=sys.stderr)
    note = equal.to_dict() | {"time_ratio": ratio, "arm_steps": planned, "rows_sha256": sha256(rows)}
    return steps, {"equal_time": note | {"spec_hash": job["spec_hash"]}}


def measure(stage: Stage, arguments: argparse.Namespace) -> None:
    """Run a measurement of the plan and write its record."""
    plan, name = load_plan(arguments), arguments.name
    job = find_job(plan, stage.name, name)
    # Use the plan's number of threads: for a timing job, Snakemake reserves all cores and sets OMP_NUM_THREADS to their
    # number.
    os.environ["OMP_NUM_THREADS"] = str(plan["threads"])
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences torch's profiler, which counts memory
    import torch

    folder, single_run = Path(plan["results"], name), stage.name in MEASURED
    with planned_job(plan, stage.name, name):
        torch.set_num_threads(plan["threads"])
        notes = (_measure_run if single_run else _time_runs)(stage, plan, name, folder)
        hashes = hashes_of_rows(folder, stage.tables)
        record = {
            "schema": 1,
            "code_hash": job["code"],
            "rows_sha256": hashes if single_run else next(iter(hashes.values())),
        }
        write_record(folder / stage.record, record | notes)


def _measure_run(stage: Stage, plan: Plan, name: str, folder: Path) -> dict[str, Any]:
    """Measure a finished run and return entries of the record.

    A stage that loads a model writes only headers for a diverged run.
    """
    from pydantic import TypeAdapter

    from formerlab.data.manifest import verify
    from formerlab.evaluation.language.suites import Suite
    from formerlab.evaluation.measurement import MeasuredRun
    from formerlab.kernels.native import keep_memory
    from formerlab.plan.measure import code_of_measuring
    from formerlab.training.any_run import AnyRun
    from formerlab.training.load import load_model
    from formerlab.training.run import Run

    job, start_time = plan[stage.name][name], time.monotonic()
    record = read_record(folder / "run.json", "spec", "data", "status", "weights_sha256")
    notes: dict[str, Any] = {"id": name, "weights_sha256": record["weights_sha256"]}
    notes |= {key: job[key] for key in ("settings", "suites")}
    data = Path(plan["data"][plan[making_stage(plan, name)][name]["data"]]["out"])
    verify(data)
    keep_memory(MAX_REUSED_BYTES)
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
        specs = {suite_name: suite.validate_python(plan["suites"][suite_name]["spec"]) for suite_name in job["suites"]}
        measured = MeasuredRun(
            spec=run,
            model=model,
            device=plan["device"],
            folder=folder,
            data=data,
            label=f"{stage.name} {name}",
            suites={suite_name: (spec, job["suites"][suite_name]) for suite_name, spec in specs.items()},
            input_hashes=(record["weights_sha256"], record["data"]["fingerprint"], job["suites"]),
            code_hash=lambda settings: code_of_measuring(stage, run, settings, list(specs.values())),
            notes=notes,
        )
        module, settings = stage.measuring
        module.measure(measured, settings.model_validate(job["settings"]))
    return notes | {"wall_time_s": time.monotonic() - start_time}


def _time_runs(stage: Stage, plan: Plan, study: str, folder: Path) -> dict[str, Any]:
    """Time the runs of a study, with initial or released weights, and return entries of the record."""
    import torch

    from formerlab.kernels.native import keep_memory
    from formerlab.training.any_run import ReleasedRun
    from formerlab.training.provenance import collect_provenance
    from formerlab.training.run import Run

    job, device = plan[stage.name][study], torch.device(plan["device"])
    keep_memory()
    jobs = run_jobs(plan)
    runs = [(ReleasedRun if run in plan["load"] else Run).model_validate(jobs[run]["spec"]) for run in job["runs"]]
    loaders: dict[str, Any] = {}
    if "released" in stage.models:
        from formerlab.integrations.huggingface.released_run import load_released_model

        loaders["load"] = lambda run, device: load_released_model(run, str(device))
    (module, settings_class), (file,) = stage.measuring, stage.tables
    settings = settings_class.model_validate(job["settings"])
    rows, notes = module.measure(runs, settings, device, **loaders)
    write_rows(folder / file, stage.tables[file].names, rows)
    inputs = {"study": study, "configuration": job["configuration"], "threads": plan["threads"]}
    return {**inputs, **notes, "load": os.getloadavg()[0], **collect_provenance(device)}
