"""The verbs that make results: data, train, load."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from formerlab.commands.as_planned import as_planned
from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.commands.gpus import on_several, own_gpus, seconds_left
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json
from formerlab.plan.judge import Judge
from formerlab.results.stages import STAGES


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, data, text=STAGES["data"].text)
    parser.add_argument("name", help="name of the data set, such as text")
    parser.add_argument("--processes", type=int, help="processes that read and encode; default: one per core")

    parser = add_verb(verbs, train, text=STAGES["train"].text)
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    text = "stop, checkpointed, before this time is up"
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help=text)
    parser.add_argument("--margin", type=float, default=30.0, metavar="SECONDS", help="how long before; default 30")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help="time between checkpoints; default 60")
    text = "what to do with the results or the checkpoint of another spec, data or code; default: refuse"
    parser.add_argument("--on-mismatch", choices=("refuse", "restart"), default="refuse", help=text)
    parser.add_argument("--deterministic", action="store_true", help="the same bits in every run on a GPU, but slower")

    parser = add_verb(verbs, load, text=STAGES["load"].text)
    parser.add_argument("id", help="run, such as decay/released-smollm2-135m-instruct/seed0")


def data(arguments: argparse.Namespace) -> None:
    """Prepare one data set of the plan."""
    from formerlab.data import prepare
    from formerlab.data.registry import data_spec

    plan = load_plan(arguments)
    job = job_of(plan, "data", arguments.name)
    if job["lacks"]:
        raise UserError(job["lacks"])
    with as_planned(plan, "data", arguments.name):
        spec, out = data_spec(job["spec"]), Path(job["out"])
        prepare(arguments.name, spec, out, code_hash=job["code"], processes=arguments.processes)


def train(arguments: argparse.Namespace) -> None:
    """Train one run of the plan."""
    from formerlab.training.run import Run
    from formerlab.training.runtime import RuntimeConfig
    from formerlab.training.stage import train_stage

    plan = load_plan(arguments)
    job = job_of(plan, "train", arguments.id)
    runtime = RuntimeConfig(
        threads=job["threads"],
        device=plan["device"],
        time_limit_s=min((s for s in (arguments.time_limit, seconds_left()) if s is not None), default=None),
        margin_s=arguments.margin,
        checkpoint_seconds=arguments.checkpoint_seconds,
        before_s=time.time() - psutil.Process().create_time(),
        on_mismatch=arguments.on_mismatch,
        code_hash=job["code"],
        deterministic=arguments.deterministic,
        keep_optimizer=job["keep_optimizer"],
    )
    out = Path(plan["results"], arguments.id)
    gpus = job.get("gpus", 1)
    if gpus > 1 and "RANK" not in os.environ:
        with own_gpus(plan["device"], gpus):
            on_several(arguments, gpus, out)
        return
    parent = Path(plan["results"], job["init"]) if job["init"] else None
    with as_planned(plan, "train", arguments.id):
        run, matched = Run.model_validate(job["spec"]), dict[str, Any]()
        if job.get("equal_time"):
            steps, matched = _steps_of_equal_time(plan, job)
            run = run.model_copy(update={"steps": steps})
        train_stage(run, Path(plan["data"][job["data"]]["out"]), out, parent=parent, runtime=runtime)
        if matched and os.environ.get("RANK", "0") == "0":
            write_json(out / "run.json", read_json(out / "run.json") | matched)


def load(arguments: argparse.Namespace) -> None:
    """Load the released model of one run of the plan."""
    plan = load_plan(arguments)
    job = job_of(plan, "load", arguments.id)
    if Judge(plan).verdict("load", arguments.id).current:
        print(f"{arguments.id}: already loaded")
        return
    from formerlab.integrations.huggingface.released_run import load_stage
    from formerlab.training.any_run import ReleasedRun

    with as_planned(plan, "load", arguments.id):
        run, data = ReleasedRun.model_validate(job["spec"]), Path(plan["data"][job["data"]]["out"])
        out = Path(plan["results"], arguments.id)
        load_stage(run, data, out, device=plan["device"], threads=plan["threads"], code_hash=job["code"])


def _steps_of_equal_time(plan: dict[str, Any], job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the steps that the measured times buy the run, and what its record says about them."""
    from formerlab.evaluation.timing.speed import EqualTime

    rows, planned = Path(plan["results"], job["study"], "speed.csv"), job["spec"]["steps"]
    equal = EqualTime.model_validate(job["equal_time"])
    ratio = equal.ratio(rows)
    steps = max(1, round(planned * ratio))
    print(f"a step of {equal.arm} takes {ratio:.4f} of one of {equal.reference}: {steps} steps", file=sys.stderr)
    note = equal.to_dict() | {"time_ratio": ratio, "arm_steps": planned, "rows_sha256": sha256(rows)}
    return steps, {"equal_time": note | {"spec_hash": job["spec_hash"]}}
