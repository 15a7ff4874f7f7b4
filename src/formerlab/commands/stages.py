"""The verbs that make results: data, train, and what measures a finished run."""

import argparse
import os
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.context import add_config_arguments, job_of, load_plan, noted
from formerlab.commands.gpus import on_several, own_gpus
from formerlab.commands.slurm import seconds_left
from formerlab.errors import UserError
from formerlab.files import read_json, sha256, write_json
from formerlab.rows import write_rows

if TYPE_CHECKING:
    from formerlab.evaluation.questions import Questions
    from formerlab.models.translator_model import TranslatorModel

SCHEMA = 1


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = verbs.add_parser("data", help="prepare a data set: tokenizer, token streams, questions, manifest")
    parser.add_argument("name", help="name of the data set, such as text")
    add_config_arguments(parser)
    parser.add_argument("--processes", type=int, help="processes that read and encode; default: one per core")
    parser.set_defaults(function=data)

    parser = verbs.add_parser("speed", help="time the runs of a study beside each other, on an idle machine")
    parser.add_argument("study", help="study, such as denseformer")
    add_config_arguments(parser)
    parser.set_defaults(function=speed)

    parser = verbs.add_parser("train", help="train one run, or go on with it")
    parser.add_argument("id", help="run, such as tokenformer/transformer-2/seed0")
    add_config_arguments(parser)
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="stop, checkpointed, before this time is up"
    )
    parser.add_argument("--margin", type=float, default=30.0, metavar="SECONDS", help="how long before; default 30")
    parser.add_argument("--checkpoint-seconds", type=float, default=60.0, help="time between checkpoints; default 60")
    parser.add_argument(
        "--on-mismatch",
        choices=("refuse", "restart"),
        default="refuse",
        help="what to do with the results or the checkpoint of another spec, data or code; default: refuse",
    )
    parser.set_defaults(function=train)

    parser = verbs.add_parser("zeroshot", help="answer the zero-shot questions with a finished run")
    parser.add_argument("id", help="run")
    add_config_arguments(parser)
    parser.set_defaults(function=zeroshot)

    parser = verbs.add_parser("prune", help="evaluate every cache policy on a finished run")
    parser.add_argument("id", help="run")
    add_config_arguments(parser)
    parser.set_defaults(function=prune)

    parser = verbs.add_parser("flow", help="look at the flow of information over the depth of a finished run")
    parser.add_argument("id", help="run")
    add_config_arguments(parser)
    parser.set_defaults(function=flow)

    parser = verbs.add_parser("translate", help="translate the held-out sentences with a finished run")
    parser.add_argument("id", help="run")
    add_config_arguments(parser)
    parser.set_defaults(function=translate)

    parser = verbs.add_parser("complexity", help="count and time the layers of Table 1 of the 2017 paper")
    parser.add_argument("id", help="run beside whose rows they are written")
    add_config_arguments(parser)
    parser.set_defaults(function=complexity)


def data(arguments: argparse.Namespace) -> None:
    """Prepare one data set of the plan."""
    from formerlab.data.kinds import data_spec, prepare_data

    plan = load_plan(arguments)
    job = job_of(plan, "data", arguments.name)
    out = Path(job["out"])
    with noted("data", out):
        spec = data_spec(job["spec"])
        prepare_data(arguments.name, spec, out, code_hash=job["code"], processes=arguments.processes)


def speed(arguments: argparse.Namespace) -> None:
    """Time what the plan has timed of a study."""
    plan = load_plan(arguments)
    job = job_of(plan, "speed", arguments.study)
    os.environ["OMP_NUM_THREADS"] = str(plan["threads"])  # the job holds more cores than it may use
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler counts memory, and would speak of it
    import torch

    from formerlab.evaluation import speed as stage
    from formerlab.run import Run

    folder = Path(plan["results"], arguments.study)
    with noted("speed", folder):
        _use_threads(plan)
        runs = [Run.model_validate(plan["train"][run_id]["spec"]) for run_id in job["runs"]]
        rows = folder / "speed.csv"
        stage.measure(runs, stage.Speed.model_validate(job["speed"]), torch.device(plan["device"]), rows)
        record = {"schema": SCHEMA, "study": arguments.study, "code_hash": job["code"]}
        record |= {"configuration": job["configuration"], "rows_sha256": sha256(rows), "threads": plan["threads"]}
        write_json(folder / "speed.json", record | stage.circumstances(torch.device(plan["device"])))


def train(arguments: argparse.Namespace) -> None:
    """Train one run of the plan."""
    from formerlab.run import Run
    from formerlab.training.settings import Settings
    from formerlab.training.stage import train_stage

    plan = load_plan(arguments)
    job = job_of(plan, "train", arguments.id)
    settings = Settings(
        threads=plan["threads"],
        device=plan["device"],
        time_limit_s=min((s for s in (arguments.time_limit, seconds_left()) if s is not None), default=None),
        margin_s=arguments.margin,
        checkpoint_seconds=arguments.checkpoint_seconds,
        on_mismatch=arguments.on_mismatch,
        code_hash=job["code"],
        keep_optimizer=job["keep_optimizer"],
    )
    out = Path(plan["results"], arguments.id)
    gpus = job.get("gpus", 1)
    if gpus > 1 and "RANK" not in os.environ:
        with own_gpus(plan["device"], gpus):
            on_several(arguments, gpus, out)
        return
    parent = Path(plan["results"], job["init"]) if job["init"] else None
    first = os.environ.get("RANK", "0") == "0"
    with noted("train", out) if first else nullcontext(), own_gpus(plan["device"]):
        run, matched = Run.model_validate(job["spec"]), dict[str, Any]()
        if job.get("equal_time"):
            steps, matched = _steps_of_equal_time(plan, job)
            run = run.model_copy(update={"steps": steps})
        train_stage(run, Path(plan["data"][job["data"]]["out"]), out, parent=parent, settings=settings)
        if matched and first:
            write_json(out / "run.json", read_json(out / "run.json") | matched)


def _steps_of_equal_time(plan: dict[str, Any], job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the steps that the measured times buy the run, and what its record says about them."""
    from formerlab.evaluation.equal_time import EqualTime, steps_of_equal_time, time_ratio

    rows, planned = Path(plan["results"], job["study"], "speed.csv"), job["spec"]["steps"]
    equal = EqualTime.model_validate(job["equal_time"])
    ratio = time_ratio(rows, equal)
    steps = steps_of_equal_time(planned, ratio)
    print(f"a step of {equal.arm} takes {ratio:.4f} of one of {equal.reference}: {steps} steps", file=sys.stderr)
    note = equal.plain() | {"time_ratio": ratio, "arm_steps": planned, "rows_sha256": sha256(rows)}
    return steps, {"equal_time": note | {"spec_hash": job["spec_hash"]}}


def zeroshot(arguments: argparse.Namespace) -> None:
    """Answer the embedded questions of the run's data set, and all suites."""
    from formerlab.evaluation import zeroshot as stage
    from formerlab.finished import load_decoder

    plan = load_plan(arguments)
    job = job_of(plan, "zeroshot", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("zeroshot", folder), own_gpus(plan["device"]):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        extra: dict[str, Any] = {"suites": job["suites"], "versions": {"lm_eval": stage.harness_version()}}
        if record["status"] == "finished":
            model, _ = load_decoder(folder)
            questions = _questions(plan, job["suites"], data_folder)
            extra["cut"] = questions.cut(model.spec.context)
            stage.zeroshot(
                model.to(plan["device"]), questions, folder / "zeroshot.csv", label=f"zeroshot {arguments.id}"
            )
        else:
            write_rows(folder / "zeroshot.csv", stage.COLUMNS, [])
        _write_sidecar(folder / "zeroshot.json", job, record, began, extra)


def prune(arguments: argparse.Namespace) -> None:
    """Evaluate the sweep of cache policies that the plan has for the run."""
    from formerlab.data import load_stream
    from formerlab.evaluation import prune as stage
    from formerlab.evaluation.zeroshot import harness_version
    from formerlab.finished import load_decoder

    plan = load_plan(arguments)
    job = job_of(plan, "prune", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("prune", folder), own_gpus(plan["device"]):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        sweep = stage.PruneSweep.model_validate(job["sweep"])
        extra: dict[str, Any] = {"sweep": job["sweep"], "suites": job["suites"]}
        extra["versions"] = {"lm_eval": harness_version()}
        if record["status"] == "finished":
            model, _ = load_decoder(folder)
            questions = _questions(plan, job["suites"], data_folder, sweep.question_limit) if sweep.questions else None
            extra["cut"] = questions.cut(model.spec.context) if questions is not None else {}
            streams = {split: load_stream(data_folder, split) for split in ("valid", "test")}
            stage.prune(model.to(plan["device"]), streams, questions, sweep, folder, label=f"prune {arguments.id}")
        else:
            stage.write_nothing(folder)
        _write_sidecar(folder / "prune.json", job, record, began, extra)


def flow(arguments: argparse.Namespace) -> None:
    """Look at the flow over depth as the plan says."""
    from formerlab.data import load_stream
    from formerlab.evaluation import flow as stage
    from formerlab.finished import load_decoder

    plan = load_plan(arguments)
    job = job_of(plan, "flow", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("flow", folder):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        if record["status"] == "finished":
            model, run = load_decoder(folder)
            settings, stream = stage.Flow.model_validate(job["settings"]), load_stream(data_folder, "test")
            stage.flow(model.to(plan["device"]), run, stream, settings, folder / "flow.csv")
        else:
            write_rows(folder / "flow.csv", stage.COLUMNS, [])
        _write_sidecar(folder / "flow.json", job, record, began, {"settings": job["settings"]})


def translate(arguments: argparse.Namespace) -> None:
    """Translate what the plan asks for."""
    from formerlab.data import load_tokenizer
    from formerlab.evaluation import translate as stage
    from formerlab.evaluation.bleu import METRICS, signature

    plan = load_plan(arguments)
    job = job_of(plan, "translate", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("translate", folder):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        if record["status"] == "finished":
            model, tokenizer = _translator_in(folder).to(plan["device"]), load_tokenizer(data_folder)
            decoding = stage.Decoding.model_validate(job["settings"])
            stage.translate(model, data_folder, tokenizer, decoding, folder, f"translate {arguments.id}")
        else:
            stage.write_nothing(folder)
        extra = {"settings": job["settings"], "signatures": {metric: signature(metric) for metric in METRICS}}
        _write_sidecar(folder / "translate.json", job, record, began, extra)


def _translator_in(folder: Path) -> "TranslatorModel":
    """Return the final model of a finished run that trained a translator."""
    from formerlab.finished import load_model
    from formerlab.models.translator_model import TranslatorModel

    model, run = load_model(folder)
    if not isinstance(model, TranslatorModel):
        raise UserError(f"{folder}: a {run.model.kind}, but only a translator can do this; name a run of translation")
    return model


def complexity(arguments: argparse.Namespace) -> None:
    """Measure the layers that the plan asks for."""
    from formerlab.evaluation import complexity as stage

    plan = load_plan(arguments)
    job = job_of(plan, "complexity", arguments.id)
    folder, _ = _folders(plan, arguments.id)
    with noted("complexity", folder):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        stage.measure(stage.Complexity.model_validate(job["settings"]), folder)
        _write_sidecar(folder / "complexity.json", job, record, began, {"settings": job["settings"]})


def _questions(plan: dict[str, Any], names: Iterable[str], data_folder: Path, limit: int | None = None) -> "Questions":
    """Load the embedded questions of a data set and the named suites; say how many contexts will be cut."""
    from pydantic import TypeAdapter

    from formerlab.data import load_tokenizer, task_configs
    from formerlab.evaluation.questions import Questions
    from formerlab.evaluation.suite_tasks import load_suites
    from formerlab.evaluation.suites import Suite

    adapter: TypeAdapter[Suite] = TypeAdapter(Suite)
    suites = {name: adapter.validate_python(plan["suites"][name]["spec"]) for name in names}
    tasks = load_suites(suites, task_configs(data_folder))
    leading = [name for name, suite in suites.items() if suite.leading_token]
    tokenizer, end_of_text = load_tokenizer(data_folder), _end_of_text(data_folder)
    return Questions(tasks, tokenizer, end_of_text=end_of_text, limit=limit, leading=leading)


def _folders(plan: dict[str, Any], run_id: str) -> tuple[Path, Path]:
    """Return the folders of a run and of its data set."""
    return Path(plan["results"], run_id), Path(plan["data"][plan["train"][run_id]["data"]]["out"])


def _end_of_text(data_folder: Path) -> int:
    """Return the token that ends a document of a data set."""
    return int(read_json(data_folder / "manifest.json")["tokenizer"]["end_of_text"])


def _use_threads(plan: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(plan["threads"])


def _write_sidecar(
    path: Path, job: dict[str, Any], record: dict[str, Any], began: float, extra: dict[str, Any]
) -> None:
    """Write what a stage's rows came from; it stands last, so a stage that has one is finished."""
    content = {
        "schema": SCHEMA,
        "id": record["id"],
        "code_hash": job["code"],
        "weights_sha256": record["weights_sha256"],
        "wall_time_s": time.monotonic() - began,
    }
    write_json(path, content | extra)
