"""A run of every kind and every stage of the smoke scale as jobs of a real Slurm, by the cluster profile as it is."""

import json
import time
from datetime import datetime

import pytest
from fixtures.checkout import Checkout
from prompt import ask_often

from formerlab.plan.build import build_plan

pytestmark = pytest.mark.slow

STAGES = ("data", "speed", "decode", "train", "zeroshot", "prune", "flow", "translate", "complexity")
RUNS = {
    "tokenformer": ["transformer-2", "tokenformer-1", "grown-random-sqrt-2"],
    "denseformer": ["plain-*", "dwa-2x1-*", "equal-time-*"],
    "decay": ["decoder"],
    "vision": ["vit"],
    "transformer": ["base"],
}
CONFIG = {
    "scale": "smoke",
    "set": {f"scale.studies.{study}.only": names for study, names in RUNS.items()},
}
LAST = {"speed": "speed.json", "train": "run.json"}
"""The file that each stage writes last; of the others it bears their name."""


def targets(plan):
    """Return the outputs of all cluster jobs; rendering, claims and tracking run locally and have their own tests."""
    names = [f"{name}/{LAST.get(stage, f'{stage}.json')}" for stage in STAGES[1:] for name in plan[stage]]
    return [f"{plan['results']}/{name}" for name in (*names, "exact.csv")]


@pytest.fixture(scope="module")
def done(slurm, tmp_path_factory):
    """Every job of these; trainings ask for a GPU, which here is a name without a device behind it."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    ask_often(checkout)
    quick = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
    words = ("--profile", "slurm", *quick, "--set-resources", "train:gpu=1")
    checkout.plan = build_plan(checkout.root, CONFIG)
    began = time.monotonic()
    done = checkout.snakemake(*targets(checkout.plan), *words, config=CONFIG, **slurm.variables())
    assert done.returncode == 0, done.stderr
    print(f"{len(targets(checkout.plan))} targets through Slurm: {time.monotonic() - began:.0f} s")
    fields = ("JobID", "State", "AllocTRES", "Start", "End")
    mine = {path.stem for path in (checkout.root / "logs/slurm").rglob("*.log")}
    accounts = [dict(zip(fields, row, strict=True)) for row in slurm.accounts(*fields)]
    checkout.accounts = [account for account in accounts if account["JobID"] in mine]
    return checkout


def logs(checkout, rule, name):
    """Return the Slurm job ids of a job of the DAG, by the files that Slurm wrote for it."""
    return [
        path.stem for path in (checkout.root / "logs/slurm" / f"rule_{rule}" / name.replace("/", "_")).glob("*.log")
    ]


def test_every_job_that_computes_went_through_slurm_once(done):
    assert all(done.plan[stage] for stage in STAGES)
    found = [logs(done, stage, name) for stage in STAGES for name in done.plan[stage]]
    found.append([path.stem for path in (done.root / "logs/slurm/rule_exact").rglob("*.log")])
    assert sorted(found) == sorted([account["JobID"]] for account in done.accounts)
    assert {account["State"] for account in done.accounts} == {"COMPLETED"}


def test_nothing_is_left_to_do(done):
    assert done.to_do(*targets(done.plan), config=CONFIG) == set()
    results = done.root / done.plan["results"]
    assert {json.loads((results / run / "run.json").read_text())["status"] for run in done.plan["train"]} == {
        "finished"
    }


def test_every_stage_has_its_own_log(done):
    for stage in STAGES:
        for name in done.plan[stage]:
            assert (done.root / f"logs/smoke/{stage}/{name}.log").exists()
    for run in done.plan["train"]:
        steps = json.loads((done.root / done.plan["results"] / run / "run.json").read_text())["spec"]["steps"]
        assert f"step {steps}/{steps}" in (done.root / f"logs/smoke/train/{run}.log").read_text()


def test_gpus_are_handed_out_and_never_more_than_there_are(done):
    trainings = {job for run in done.plan["train"] for job in logs(done, "train", run)}
    holders = [account for account in done.accounts if "gres/gpu=1" in account["AllocTRES"].split(",")]
    assert {account["JobID"] for account in holders} == trainings
    times = [(datetime.fromisoformat(h["Start"]), datetime.fromisoformat(h["End"])) for h in holders]
    assert max(sum(start <= moment < end for start, end in times) for moment, _ in times) <= 2
