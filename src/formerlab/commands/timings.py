"""The verbs that time runs of a study beside each other, trained or not: speed, decode."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.as_planned import as_planned
from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.commands.gpus import own_gpus
from formerlab.files import sha256, write_json
from formerlab.results.notes import noted

if TYPE_CHECKING:
    import torch

    from formerlab.training.run import Run

SCHEMA = 1


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    for function, text in (
        (speed, "time the runs of a study beside each other, on an idle machine"),
        (decode, "measure decoding against the length of the text, with whole and pruned caches, on an idle machine"),
    ):
        add_verb(verbs, function.__name__, function, text).add_argument("study", help="study, such as denseformer")


@dataclass(frozen=True)
class Timed:
    """Runs of a study while a stage times them."""

    runs: "list[Run]"
    settings: dict[str, Any]
    """What the plan says of the stage."""
    device: "torch.device"
    rows: Path
    """File to write."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What the record says beside what every one says."""


@contextmanager
def timing(stage: str, arguments: argparse.Namespace) -> Iterator[Timed]:
    """Do what every timing does around its own work; its record, `<stage>.json`, is written last."""
    plan = load_plan(arguments)
    job = job_of(plan, stage, arguments.study)
    os.environ["OMP_NUM_THREADS"] = str(plan["threads"])  # the job holds more cores than it may use
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler counts memory, and would speak of it
    import torch

    from formerlab.evaluation.timing.timing import circumstances
    from formerlab.kernels.native import keep_memory
    from formerlab.training.run import Run

    folder = Path(plan["results"], arguments.study)
    with noted(stage, folder), as_planned(plan, stage, arguments.study), own_gpus(plan["device"]):
        torch.set_num_threads(plan["threads"])
        keep_memory()
        runs = [Run.model_validate(plan["train"][run_id]["spec"]) for run_id in job["runs"]]
        timed = Timed(runs, job[stage], torch.device(plan["device"]), folder / f"{stage}.csv")
        yield timed
        record = {"schema": SCHEMA, "study": arguments.study, "code_hash": job["code"]}
        record |= {"configuration": job["configuration"], "rows_sha256": sha256(timed.rows)}
        record |= {"threads": plan["threads"]} | timed.notes | circumstances(timed.device)
        write_json(folder / f"{stage}.json", record)


def speed(arguments: argparse.Namespace) -> None:
    """Time what the plan has timed of a study."""
    with timing("speed", arguments) as timed:
        from formerlab.evaluation.timing import speed as stage

        timed.notes["mixing"] = stage.mixing(timed.device)
        stage.measure(timed.runs, stage.Speed.model_validate(timed.settings), timed.device, timed.rows)


def decode(arguments: argparse.Namespace) -> None:
    """Measure decoding as the plan says."""
    with timing("decode", arguments) as timed:
        from formerlab.evaluation.timing import decode as stage

        stage.measure(timed.runs, stage.DecodeSettings.model_validate(timed.settings), timed.device, timed.rows)
