"""The verbs that measure a finished run: zeroshot, prune, flow, translate, complexity."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.as_planned import AGAIN, as_planned
from formerlab.commands.context import Plan, add_verb, job_of, load_plan
from formerlab.commands.gpus import own_gpus
from formerlab.errors import UserError
from formerlab.files import read_json, write_json
from formerlab.results.notes import noted
from formerlab.results.write import write_rows

if TYPE_CHECKING:
    from formerlab.evaluation.language.questions import Questions

SCHEMA = 1


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    for function, text in (
        (zeroshot, "answer the zero-shot questions with a finished run"),
        (prune, "evaluate every cache policy on a finished run"),
        (flow, "look at the flow of information over the depth of a finished run"),
        (translate, "translate the held-out sentences with a finished run"),
        (complexity, "count and time the layers of Table 1 of the 2017 paper, beside a run"),
    ):
        add_verb(verbs, function.__name__, function, text).add_argument("id", help="run")


@dataclass(frozen=True)
class Measured:
    """A run while a stage measures it."""

    plan: Plan
    job: dict[str, Any]
    folder: Path
    """Of the run."""
    data: Path
    """Folder of its data set."""
    label: str
    """Stage and run, for progress."""
    finished: bool
    """Whether it is a model that can be measured; else it diverged, and its rows are a header alone."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the record of the measurement says beside what every one says."""


@contextmanager
def measuring(stage: str, arguments: argparse.Namespace) -> Iterator[Measured]:
    """Do what every measurement does around its own work.

    Before: the job of the plan, a note for `status`, a GPU of its own, the plan's threads. After: `<stage>.json`, which
    says what the rows came from; it is written last, so a stage that has one is finished.
    """
    import torch

    from formerlab.kernels.native import keep_memory

    plan = load_plan(arguments)
    job = job_of(plan, stage, arguments.id)
    folder = Path(plan["results"], arguments.id)
    data = Path(plan["data"][plan["train"][arguments.id]["data"]]["out"])
    with noted(stage, folder), as_planned(plan, stage, arguments.id), own_gpus(plan["device"]):
        torch.set_num_threads(plan["threads"])
        keep_memory()
        record, began = read_json(folder / "run.json"), time.monotonic()
        run = Measured(plan, job, folder, data, f"{stage} {arguments.id}", record["status"] == "finished")
        yield run
        sources = {
            "schema": SCHEMA,
            "id": record["id"],
            "code_hash": job["code"],
            "weights_sha256": record["weights_sha256"],
            "wall_time_s": time.monotonic() - began,
        }
        asked = {key: job[key] for key in ("settings", "sweep", "suites") if key in job}
        write_json(folder / f"{stage}.json", sources | asked | run.notes)


def zeroshot(arguments: argparse.Namespace) -> None:
    """Answer the embedded questions of the run's data set, and all suites."""
    from formerlab.evaluation.language import zeroshot as stage
    from formerlab.training.load import load_decoder

    with measuring("zeroshot", arguments) as run:
        run.notes["versions"] = {"lm_eval": stage.harness_version()}
        rows = run.folder / "zeroshot.csv"
        if not run.finished:
            write_rows(rows, stage.COLUMNS, [])
            return
        model, _ = load_decoder(run.folder)
        questions = _questions(run)
        run.notes["cut"] = questions.cut(model.spec.context)
        stage.zeroshot(model.to(run.plan["device"]), questions, rows, label=run.label)


def prune(arguments: argparse.Namespace) -> None:
    """Evaluate the sweep of cache policies that the plan has for the run."""
    from formerlab.data import load_stream
    from formerlab.evaluation.language.zeroshot import harness_version
    from formerlab.evaluation.pruning import prune as stage
    from formerlab.training.load import load_decoder

    with measuring("prune", arguments) as run:
        run.notes["versions"] = {"lm_eval": harness_version()}
        sweep = stage.PruneSweep.model_validate(run.job["sweep"])
        if not run.finished:
            stage.write_nothing(run.folder)
            return
        model, _ = load_decoder(run.folder)
        questions = _questions(run, sweep.question_limit) if sweep.questions else None
        run.notes["cut"] = questions.cut(model.spec.context) if questions is not None else {}
        streams = {split: load_stream(run.data, split) for split in ("valid", "test")}
        stage.prune(model.to(run.plan["device"]), streams, questions, sweep, run.folder, label=run.label)


def flow(arguments: argparse.Namespace) -> None:
    """Look at the flow over depth as the plan says."""
    from formerlab.data import load_stream
    from formerlab.evaluation.language import flow as stage
    from formerlab.training.load import load_decoder

    with measuring("flow", arguments) as run:
        rows = run.folder / "flow.csv"
        if not run.finished:
            write_rows(rows, stage.COLUMNS, [])
            return
        model, spec = load_decoder(run.folder)
        settings, stream = stage.Flow.model_validate(run.job["settings"]), load_stream(run.data, "test")
        stage.flow(model.to(run.plan["device"]), spec, stream, settings, rows)


def translate(arguments: argparse.Namespace) -> None:
    """Translate what the plan asks for."""
    from formerlab.data import load_tokenizer
    from formerlab.evaluation.translation import translate as stage
    from formerlab.evaluation.translation.bleu import METRICS, signature
    from formerlab.training.load import load_translator

    with measuring("translate", arguments) as run:
        run.notes["signatures"] = {metric: signature(metric) for metric in METRICS}
        if not run.finished:
            stage.write_nothing(run.folder)
            return
        model, _ = load_translator(run.folder)
        decoding, tokenizer = stage.Decoding.model_validate(run.job["settings"]), load_tokenizer(run.data)
        stage.translate(model.to(run.plan["device"]), run.data, tokenizer, decoding, run.folder, run.label)


def complexity(arguments: argparse.Namespace) -> None:
    """Measure the layers that the plan asks for."""
    from formerlab.evaluation.timing import complexity as stage

    with measuring("complexity", arguments) as run:
        stage.measure(stage.Complexity.model_validate(run.job["settings"]), run.folder)


def _questions(run: Measured, limit: int | None = None) -> "Questions":
    """Load the embedded questions of a data set and the job's suites; say how many contexts will be cut."""
    from pydantic import TypeAdapter

    from formerlab.data import load_tokenizer, task_configs
    from formerlab.evaluation.language.questions import Questions
    from formerlab.evaluation.language.suite_tasks import load_suites
    from formerlab.evaluation.language.suites import Suite

    adapter: TypeAdapter[Suite] = TypeAdapter(Suite)
    suites = {name: adapter.validate_python(run.plan["suites"][name]["spec"]) for name in run.job["suites"]}
    for name, suite in suites.items():
        if suite.state() not in (None, run.job["suites"][name]):
            raise UserError(f"{run.label}: suite {name} has changed since it was planned; {AGAIN}")
    tasks = load_suites(suites, task_configs(run.data))
    leading = [name for name, suite in suites.items() if suite.leading_token]
    end_of_text = int(read_json(run.data / "manifest.json")["tokenizer"]["end_of_text"])
    return Questions(tasks, load_tokenizer(run.data), end_of_text=end_of_text, limit=limit, leading=leading)
