"""The whole smoke scale as jobs of a real Slurm, by the cluster profile as it stands."""

import json
from datetime import datetime

import pytest
from fixtures.checkout import Checkout

from formerlab.plan.locate import read_plan

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done(slurm, tmp_path_factory):
    """Every job of the smoke scale; trainings ask for a GPU, which here is a name without a device behind it."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    quick = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
    words = ("--profile", "slurm", *quick, "--set-resources", "train:gpu=1")
    done = checkout.snakemake(*words, config={"scale": "smoke"}, **slurm.variables())
    assert done.returncode == 0, done.stderr
    (plan,) = (checkout.root / ".formerlab/plans").iterdir()
    checkout.plan = read_plan(plan)
    fields = ("JobID", "State", "AllocTRES", "Start", "End")
    checkout.accounts = [dict(zip(fields, row, strict=True)) for row in slurm.accounts(*fields)]
    return checkout


def logs(checkout, rule, name):
    """Return the Slurm job ids of a job of the DAG, by the files that Slurm wrote for it."""
    return [
        path.stem for path in (checkout.root / "logs/slurm" / f"rule_{rule}" / name.replace("/", "_")).glob("*.log")
    ]


def test_every_job_that_computes_went_through_slurm_once(done):
    stages = ("data", "train", "zeroshot", "prune")
    found = [logs(done, stage, name) for stage in stages for name in done.plan[stage]]
    assert sorted(found) == sorted([account["JobID"]] for account in done.accounts)
    assert {account["State"] for account in done.accounts} == {"COMPLETED"}


def test_nothing_is_left_to_do(done):
    assert done.to_do(config={"scale": "smoke"}) == set()
    results = done.root / done.plan["results"]
    assert {json.loads((results / run / "run.json").read_text())["status"] for run in done.plan["train"]} == {
        "finished"
    }


def test_every_stage_has_its_own_log(done):
    for run in done.plan["train"]:
        assert "step 20/20" in (done.root / f"logs/smoke/train/{run}.log").read_text()


def test_gpus_are_handed_out_and_never_more_than_there_are(done):
    trainings = {job for run in done.plan["train"] for job in logs(done, "train", run)}
    holders = [account for account in done.accounts if "gres/gpu=1" in account["AllocTRES"].split(",")]
    assert {account["JobID"] for account in holders} == trainings
    times = [(datetime.fromisoformat(h["Start"]), datetime.fromisoformat(h["End"])) for h in holders]
    assert max(sum(start <= moment < end for start, end in times) for moment, _ in times) <= 2
