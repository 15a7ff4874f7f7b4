"""The verbs that make results: data, train, zeroshot, prune."""

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_config_arguments, job_of, load_plan, noted
from formerlab.commands.gpus import on_several, own_gpus
from formerlab.commands.slurm import seconds_left
from formerlab.files import read_json, write_json
from formerlab.rows import write_rows

SCHEMA = 1


def add_parsers(verbs: Any) -> None:
    """Add the four verbs."""
    parser = verbs.add_parser("data", help="prepare a data set: tokenizer, token streams, questions, manifest")
    parser.add_argument("name", help="name of the data set, such as text")
    add_config_arguments(parser)
    parser.add_argument("--processes", type=int, help="processes that read and encode; default: one per core")
    parser.set_defaults(function=data)

    parser = verbs.add_parser("train", help="train one run, or go on with it")
    parser.add_argument("id", help="run, such as tokenformer/transformer/seed0")
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


def data(arguments: argparse.Namespace) -> None:
    """Prepare one data set of the plan."""
    from formerlab.data.kinds import data_spec, prepare_data

    plan = load_plan(arguments)
    job = job_of(plan, "data", arguments.name)
    out = Path(job["out"])
    with noted("data", out):
        spec = data_spec(job["spec"])
        prepare_data(arguments.name, spec, out, code_hash=job["code"], processes=arguments.processes)


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
        run = Run.model_validate(job["spec"])
        train_stage(run, Path(plan["data"][job["data"]]["out"]), out, parent=parent, settings=settings)


def zeroshot(arguments: argparse.Namespace) -> None:
    """Answer the questions of the run's data set."""
    from formerlab.data import load_tokenizer, task_configs
    from formerlab.evaluation import zeroshot as stage
    from formerlab.finished import load_decoder

    plan = load_plan(arguments)
    job = job_of(plan, "zeroshot", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("zeroshot", folder), own_gpus(plan["device"]):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        if record["status"] == "finished":
            model, _ = load_decoder(folder)
            tasks = stage.load_tasks(task_configs(data_folder))
            tokenizer = load_tokenizer(data_folder)
            stage.zeroshot(
                model.to(plan["device"]),
                tokenizer,
                tasks,
                folder / "zeroshot.csv",
                end_of_text=_end_of_text(data_folder),
                label=f"zeroshot {arguments.id}",
            )
        else:
            write_rows(folder / "zeroshot.csv", stage.COLUMNS, [])
        extra = {"versions": {"lm_eval": stage.harness_version()}}
        _write_sidecar(folder / "zeroshot.json", job, record, began, extra)


def prune(arguments: argparse.Namespace) -> None:
    """Evaluate the sweep of cache policies that the plan has for the run."""
    from formerlab.data import load_stream, load_tokenizer, task_configs
    from formerlab.evaluation import prune as stage
    from formerlab.evaluation.zeroshot import harness_version, load_tasks
    from formerlab.finished import load_decoder

    plan = load_plan(arguments)
    job = job_of(plan, "prune", arguments.id)
    folder, data_folder = _folders(plan, arguments.id)
    with noted("prune", folder), own_gpus(plan["device"]):
        _use_threads(plan)
        record, began = read_json(folder / "run.json"), time.monotonic()
        sweep = stage.PruneSweep.model_validate(job["sweep"])
        if record["status"] == "finished":
            model, _ = load_decoder(folder)
            tasks = load_tasks(task_configs(data_folder)) if sweep.questions else None
            stage.prune(
                model.to(plan["device"]),
                load_stream(data_folder, "test"),
                load_tokenizer(data_folder),
                tasks,
                sweep,
                folder,
                end_of_text=_end_of_text(data_folder),
                label=f"prune {arguments.id}",
            )
        else:
            stage.write_nothing(sweep, folder)
        extra = {"sweep": job["sweep"], "versions": {"lm_eval": harness_version()}}
        _write_sidecar(folder / "prune.json", job, record, began, extra)


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
