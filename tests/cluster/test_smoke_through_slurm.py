"""Every kind of run and every stage of scale smoke, run as jobs of a private Slurm with the unchanged Slurm profile."""

import json
import time
from datetime import datetime

import pytest
from fixtures.checkout import Checkout
from polling import poll_often

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
    "studies": list(RUNS),
    "set": {f"scale.studies.{study}.only": names for study, names in RUNS.items()},
}
"""The study `combined` is left out, because it has no kind of run or stage that these studies do not have."""
LAST_FILE = {"speed": "speed.json", "train": "run.json"}
"""The file that a stage writes last. Stages that are not listed write <stage>.json last."""


def targets(plan):
    """Return the outputs of all cluster jobs. Rendering, claims and tracking run locally and have other tests."""
    names = [f"{name}/{LAST_FILE.get(stage, f'{stage}.json')}" for stage in STAGES[1:] for name in plan[stage]]
    return [f"{plan['results']}/{name}" for name in (*names, "exact.csv")]


@pytest.fixture(scope="module")
def finished_checkout(slurm, tmp_path_factory):
    """Run the jobs of all targets and return the checkout. Training jobs request a GPU, which is a fake device file."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    poll_often(checkout)
    short_waits = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
    options = ("--profile", "slurm", *short_waits, "--set-resources", "train:gpu=1")
    checkout.plan = build_plan(checkout.root, CONFIG)
    began = time.monotonic()
    result = checkout.snakemake(*targets(checkout.plan), *options, config=CONFIG, **slurm.variables())
    assert result.returncode == 0, result.stderr
    print(f"{len(targets(checkout.plan))} targets through Slurm: {time.monotonic() - began:.0f} s")
    fields = ("JobID", "State", "AllocTRES", "Start", "End")
    job_ids = {path.stem for path in (checkout.root / "logs/slurm").rglob("*.log")}
    accounts = [dict(zip(fields, row, strict=True)) for row in slurm.accounts(*fields)]
    checkout.accounts = [account for account in accounts if account["JobID"] in job_ids]
    return checkout


def job_ids_of(checkout, rule, name):
    """Return the Slurm job ids of a job of the DAG, from the names of its log files."""
    return [
        path.stem for path in (checkout.root / "logs/slurm" / f"rule_{rule}" / name.replace("/", "_")).glob("*.log")
    ]


def test_every_computing_job_ran_once_in_slurm(finished_checkout):
    assert all(finished_checkout.plan[stage] for stage in STAGES)
    job_ids = [job_ids_of(finished_checkout, stage, name) for stage in STAGES for name in finished_checkout.plan[stage]]
    job_ids.append([path.stem for path in (finished_checkout.root / "logs/slurm/rule_exact").rglob("*.log")])
    assert sorted(job_ids) == sorted([account["JobID"]] for account in finished_checkout.accounts)
    assert {account["State"] for account in finished_checkout.accounts} == {"COMPLETED"}


def test_no_jobs_remain(finished_checkout):
    assert finished_checkout.to_do(*targets(finished_checkout.plan), config=CONFIG) == set()
    results = finished_checkout.root / finished_checkout.plan["results"]
    assert {
        json.loads((results / run / "run.json").read_text())["status"] for run in finished_checkout.plan["train"]
    } == {"finished"}


def test_every_stage_writes_its_log(finished_checkout):
    for stage in STAGES:
        for name in finished_checkout.plan[stage]:
            assert (finished_checkout.root / f"logs/smoke/{stage}/{name}.log").exists()
    for run in finished_checkout.plan["train"]:
        record = finished_checkout.root / finished_checkout.plan["results"] / run / "run.json"
        steps = json.loads(record.read_text())["spec"]["steps"]
        log = finished_checkout.root / f"logs/smoke/train/{run}.log"
        assert f"step {steps}/{steps}" in log.read_text()


def test_training_jobs_get_gpus_and_at_most_two_are_in_use(finished_checkout):
    training_runs = finished_checkout.plan["train"]
    training_jobs = {job for run in training_runs for job in job_ids_of(finished_checkout, "train", run)}
    gpu_jobs = [account for account in finished_checkout.accounts if "gres/gpu=1" in account["AllocTRES"].split(",")]
    assert {account["JobID"] for account in gpu_jobs} == training_jobs
    times = [(datetime.fromisoformat(job["Start"]), datetime.fromisoformat(job["End"])) for job in gpu_jobs]
    assert max(sum(start <= moment < end for start, end in times) for moment, _ in times) <= 2
