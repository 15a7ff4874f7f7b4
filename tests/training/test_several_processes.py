"""Two processes that share a run out learn what one does alone, and stop and continue together."""

import json
import os
import subprocess
import sys

import pytest
from small_runs import MODEL, rows, small, trained, write_plan

from formerlab.errors import UserError
from formerlab.tasks import LanguageModeling
from formerlab.training import parallel

pytestmark = pytest.mark.xdist_group("parallel")

RUN = small(
    model=MODEL.model_copy(update={"dropout": 0.1}),
    task=LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=6),
)
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def train(data, tmp_path):
    """Return a function that trains the run with two processes in `results`."""
    plan = write_plan(RUN, data, tmp_path, gpus=2)

    def call(*words):
        command = [sys.executable, "-m", "formerlab", "train", RUN.id, "--plan", str(plan), *words]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)

    return call


def test_two_processes_stopped_once_learn_what_one_does_alone(train, data, tmp_path):
    out = tmp_path / "results" / RUN.id
    stopped = train("--time-limit", "0.000001", "--margin", "0")
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped after step 0 of 12 (the time limit of 1e-06 s is near)" in stopped.stderr
    assert (out / "checkpoint/last.pt").exists()
    done = train()
    assert done.returncode == 0, done.stderr
    assert not (out / ".train.state.json").exists()
    alone = trained(RUN, data, tmp_path / "alone")
    record = json.loads((out / "run.json").read_text())
    assert record["final"] == pytest.approx(alone["final"], rel=1e-5)
    for name in ("train", "eval", "test"):
        for together, one in zip(rows(out, name), rows(tmp_path / "alone", name), strict=True):
            assert numbers(together) == pytest.approx(numbers(one), rel=1e-4), name


def numbers(row):
    """Return the row's cells that are numbers; the others name a split."""
    return [float(cell) for cell in (row.values() if isinstance(row, dict) else row) if cell != "valid"]


def test_parts_that_cannot_be_shared_out_are_named(monkeypatch):
    monkeypatch.setattr(parallel, "count", lambda: 2)
    monkeypatch.setattr(parallel, "rank", lambda: 1)
    assert parallel.share("abcd") == [(1, "b"), (3, "d")]
    with pytest.raises(UserError, match=r"2 processes cannot share a step of 3 parts;"):
        parallel.share("abc")
