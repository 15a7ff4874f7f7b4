"""Runs that train within seconds, and readers of their files."""

import csv
import json
from itertools import count
from pathlib import Path

import pytest

from formerlab.errors import StoppedEarly
from formerlab.files import sha256
from formerlab.layers import LayerNorm, Pattention
from formerlab.models import Decoder
from formerlab.plan import source_hashes
from formerlab.tasks import LanguageModeling
from formerlab.training.optimizer import AdamW
from formerlab.training.run import Run
from formerlab.training.runtime import RuntimeConfig, StopRequest
from formerlab.training.stage import train_stage

VOCABULARY = 257
MODEL = Decoder(vocabulary=VOCABULARY, layers=2, width=16, heads=2, context=8, embedding_std=0.5)
TOKENFORMER = MODEL.model_copy(
    update={
        "norm": LayerNorm(gain=False, bias=False),
        "projection": Pattention(tokens=6),
        "feedforward": Pattention(tokens=10),
    }
)
RUN = Run(
    study="study",
    name="run",
    seed=3,
    model=MODEL,
    task=LanguageModeling(context=8, batch=4, valid_windows=6),
    optimizer=AdamW(lr=0.01),
    steps=12,
    log_every=3,
    evaluate_every=5,
)

BIT_IDENTICAL_FILES = ("weights.safetensors", "train.csv", "eval.csv", "test.csv", "depth.csv", "run.yaml")


def small(**changes: object) -> Run:
    """Return the small run with some fields changed."""
    return Run.model_validate({**dict(RUN), **changes})


def write_plan(run: Run, data: Path, folder: Path, **job: object) -> Path:
    """Write a plan of one run with results in `folder`/results; return the file of the plan."""
    job = {"spec": run.to_dict(), "spec_hash": run.fingerprint(), "code": "code", "data": "text", "init": None, **job}
    manifest = json.loads((data / "manifest.json").read_text())
    prepared = {"recipe": "recipe", "source": "source_fingerprint", "code": "code_hash"}
    prepared = {key: manifest[output] for key, output in prepared.items()}
    plan = {
        "schema": 1,
        "scale": "test",
        "results": str(folder / "results"),
        "device": "cpu",
        "threads": 1,
        "data": {"text": prepared | {"out": str(data), "tokenizer": None}},
        "train": {run.id: {"keep_optimizer": False, "threads": 1} | job},
        "code": {job["code"]: ["formerlab.training.stage"]},
        "sources": source_hashes.AT_START,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder / "plan.json"


def train_run(run: Run, data: Path, out: Path, parent: Path | None = None, **settings: object) -> dict:
    """Train a run to its end and return its record."""
    train_stage(run, data, out, parent=parent, runtime=RuntimeConfig(code_hash="code", **settings))
    return json.loads((out / "run.json").read_text())


def interrupt_run(
    patch: pytest.MonkeyPatch,
    steps: int,
    run: Run,
    data: Path,
    out: Path,
    parent: Path | None = None,
    **settings: object,
) -> None:
    """Train some steps of a run, then stop it with a checkpoint."""
    checks = count()
    with patch.context() as until_here:
        until_here.setattr(StopRequest, "__call__", lambda self: "a test" if next(checks) == steps else None)
        with pytest.raises(StoppedEarly, match="a test"):
            train_run(run, data, out, parent, **settings)


def hashes(out: Path) -> dict[str, str]:
    """Return the hashes of all results that must not depend on interruptions."""
    return {name: sha256(out / name) for name in BIT_IDENTICAL_FILES}


def rows(out: Path, name: str) -> list[dict[str, float | str]]:
    """Return the rows of a CSV file, with numbers converted."""
    with open(out / f"{name}.csv", newline="") as file:
        return [{key: _number(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
