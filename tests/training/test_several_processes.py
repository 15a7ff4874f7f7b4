"""Two processes that divide a run match one process, and stop and continue together."""

import json
import os
import subprocess
import sys
import time

import pytest
from fixtures.forked import join_process_group, run_forked
from fixtures.ports import free_ports
from small_runs import MODEL, rows, small, train_run, write_plan

from formerlab.data import prepare
from formerlab.data.pairs.prepare import ParallelData
from formerlab.data.pairs.sources import Phrases
from formerlab.data.text.tokenizer import BytePairs
from formerlab.layers import DepthWeightedAverage
from formerlab.models import Translator
from formerlab.tasks import LanguageModeling, Translation
from formerlab.training.optimizer import AdamW
from formerlab.training.runtime import RuntimeConfig
from formerlab.training.stage import train_stage

pytestmark = pytest.mark.xdist_group("parallel")

BASE_RUN = small(
    model=MODEL.model_copy(update={"dropout": 0.1, "depth": DepthWeightedAverage()}),
    task=LanguageModeling(context=8, batch=4, accumulate=2, valid_windows=6),
)
RUN = BASE_RUN.model_copy(update={"optimizer": AdamW(lr=0.01, mixing_start_step=5)})
"""A run whose mixing weights are trained from step 5 on."""
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "SLURM_JOB_ID"} | {"OMP_NUM_THREADS": "1"}


SRUN = """#!/bin/sh
# Replaces Slurm's srun: starts the command twice, as if on two machines.
echo "$@" >>"$SRUN_CALLS"
while [ "${1#--}" != "$1" ]; do shift; done
"$@" & first=$!
"$@"; second=$?
wait $first && exit $second
"""


@pytest.fixture
def train(data, tmp_path):
    """Return a function that trains a run with two processes in `results`."""

    def call(*options, run=RUN, environment=(), **job):
        plan = write_plan(run, data, tmp_path, gpus=2, **job)
        command = [sys.executable, "-m", "formerlab", "train", run.id, "--plan", str(plan), *options]
        return subprocess.run(command, env=ENVIRONMENT | dict(environment), capture_output=True, text=True)

    return call


def test_two_processes_match_one_process_after_a_stop(train, data, tmp_path):
    out = tmp_path / "results" / RUN.id
    stopped = train("--time-limit", "0.000001", "--margin", "0")
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped after step 0 of 12 (the time limit of 1e-06 s is near)" in stopped.stderr
    assert (out / "checkpoint/last.pt").exists()
    result = train()
    assert result.returncode == 0, result.stderr
    assert_matches_one_process(out, data, tmp_path)


def test_two_nodes_with_fsdp_match_one_process(train, data, tmp_path):
    (tmp_path / "bin").mkdir()
    srun, calls = tmp_path / "bin/srun", tmp_path / "calls"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    path = f"{srun.parent}:{os.environ['PATH']}"
    environment = {"SLURM_JOB_ID": "7", "PATH": path, "SRUN_CALLS": str(calls)}
    result = train(run=BASE_RUN, nodes=2, sharded=True, environment=environment)
    assert result.returncode == 0, result.stderr
    assert calls.read_text().count("\n") == 1
    assert calls.read_text().startswith(
        "--nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 --kill-on-bad-exit=1"
    )
    assert_matches_one_process(tmp_path / "results" / BASE_RUN.id, data, tmp_path, BASE_RUN)


FAULTY = """
import os
import time

if "RANK" in os.environ:
    import torch

    from formerlab.training.step import Steps

    def take(steps):
        if os.environ["RANK"] == "1":
            raise {error}
        time.sleep(3600)  # like a sum of gradients on GPUs that waits for the other process

    Steps.take = take
"""
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.19 GiB"
FAILURES = {
    "a GPU that is full": (f"torch.OutOfMemoryError({FULL!r})", 2, "error: train study/run/seed3: CUDA out of memory"),
    "a crash": ("ValueError('no such thing')", 1, "process 1 failed: no such thing"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_process_ends_the_other_and_its_error_is_shown(failure, train, tmp_path):
    error, status, line = FAILURES[failure]
    (tmp_path / "sitecustomize.py").write_text(FAULTY.format(error=error))
    began = time.monotonic()
    result = train(run=BASE_RUN, environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert time.monotonic() - began < 300, "the process that did not fail waited for the failed process"
    assert result.returncode == status, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(line)
    if status == 2:
        assert all(word in last for word in ("task.accumulate", "checkpoint_activations", "gpus", "2.00 GiB"))
    assert "process 1 of 2 failed" in result.stderr
    note = json.loads((tmp_path / "results" / BASE_RUN.id / ".train.state.json").read_text())
    assert (note["state"], note["mistake"]) == ("failed", status == 2)
    assert note["reason"] in last


def test_steps_with_fewer_sentences_than_micro_batches_are_divided(tmp_path):
    """With a single sentence, the second process computes the micro-batch of the first process again.

    The gradient of the repeated micro-batch does not count.
    """
    source, pairs = Phrases(count=100), tmp_path / "pairs"
    prepare("pairs", ParallelData(source=source, tokenizer=BytePairs(vocabulary=300), max_tokens=64), pairs)
    run = small(
        model=Translator(vocabulary=300, layers=1, width=16, heads=2, context=114, dropout=0.1),
        task=Translation(tokens=40, accumulate=4, valid_pairs=3),
        steps=8,
    )
    stream = run.task.load(pairs, "train")
    counts = {len(run.task.step_batches(stream, run.seed, step)) for step in range(8)}
    assert counts >= {1, 2, 3}
    run_forked(2, one_of_two, *free_ports(1), run, pairs, tmp_path / "out")
    assert_matches_one_process(tmp_path / "out", pairs, tmp_path, run)


def one_of_two(rank, port, run, data, out):
    join_process_group(rank, 2, port)
    train_stage(run, data, out, parent=None, runtime=RuntimeConfig(code_hash="code"))


def assert_matches_one_process(out, data, tmp_path, run=RUN):
    assert not (out / ".train.state.json").exists()
    alone = train_run(run, data, tmp_path / "alone")
    record = json.loads((out / "run.json").read_text())
    assert (record["processes"], alone["processes"]) == (2, 1)
    utilisation = record["flops"] / record["training_time_s"] / (2 * record["matmul_flops_per_s"])
    assert record["model_flops_utilisation"] == pytest.approx(utilisation)
    assert record["final"] == pytest.approx(alone["final"], rel=1e-5)
    for name in ("train", "eval", "test"):
        for actual, expected in zip(rows(out, name), rows(tmp_path / "alone", name), strict=True):
            assert numbers(actual) == pytest.approx(numbers(expected), rel=1e-4), name


def numbers(row):
    """Return the numeric cells of a row; other cells name a split."""
    return [float(cell) for cell in (row.values() if isinstance(row, dict) else row) if cell != "valid"]
