"""The DAG in a copy of the repository's files: what runs, and what runs again after a change.

Every job is replaced by a stand-in that only writes the files the job would write, so that all studies fit in seconds.
"""

import functools
import json
import os
import re
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest
from fixtures.checkout import ROOT, Checkout, drawn_from, jobs

from formerlab.files import write_json
from formerlab.plan.build import build_plan
from formerlab.plan.show import states
from formerlab.plan.staleness import RECORDS
from formerlab.report.catalogue import catalogue
from formerlab.results.notes import stage_note
from formerlab.results.stages import MEASURED, STAGES, TIMED

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dag")]


ENDING = {"claims", "runs", "track", "all"}
"""What follows from any run."""

STAND_IN = Path(__file__).with_name("fixtures") / "stand_in.py"


@pytest.fixture(scope="module")
def acted(tmp_path_factory):
    """The whole DAG at scale smoke, done by the stand-in, which fails in one run the first time."""
    checkout = Checkout(tmp_path_factory.mktemp("acted"))
    units = {"OF_RUN": {"train": STAGES["train"], **MEASURED}, "OF_STUDY": TIMED}
    written = [f"{unit} = { {name: stage.written for name, stage in of.items()} }\n" for unit, of in units.items()]
    (checkout.bin / "python").write_text(f"#!{sys.executable} -IS\n{''.join(written)}{STAND_IN.read_text()}")
    (checkout.bin / "python").chmod(0o755)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke")
    checkout.jobs = build_plan(checkout.root, {})["train"]
    done = checkout.snakemake("--cores", "2", "--keep-going", FAILING=next(iter(of_study(checkout, "denseformer"))))
    assert done.returncode == 1
    checkout.said = done.stderr
    checkout.left = checkout.to_do()
    assert checkout.snakemake("--cores", "2").returncode == 0
    return checkout


def results(acted):
    return build_plan(acted.root, {})["results"]


def of_study(acted, study):
    """Return the runs of a study, by id."""
    return {run: job for run, job in acted.jobs.items() if job["study"] == study}


@functools.cache
def looked_at():
    """Return the runs, without their seeds, whose flow over depth is looked at."""
    return {run.rpartition("/")[0] for run in build_plan(ROOT, {"scale": "smoke"})["flow"]}


def following(*runs):
    """Return the jobs that train runs, look at them, draw from them, and end every call."""
    flow = {f"flow {run}" for run in runs if run.rpartition("/")[0] in looked_at()}
    return {f"train {run}" for run in runs} | flow | drawn_from(*runs) | ENDING


def test_a_failed_run_stops_only_what_hangs_on_it(acted):
    assert acted.left == following(next(iter(of_study(acted, "denseformer"))))


def test_a_run_is_a_line_per_stage_and_names_what_failed(acted):
    failing = next(iter(of_study(acted, "denseformer")))
    lines = acted.said.splitlines()
    assert "\r" not in acted.said
    assert len(lines) < 40  # for over a hundred jobs
    named = lines.index(f"train {failing} did not finish; log logs/smoke/train/{failing}.log")
    assert lines[named + 1] == "    this one fails"
    assert any(re.fullmatch(r"data +\d+ jobs done after +[\d:]+", line) for line in lines)
    assert acted.snakemake("--cores", "1", "--forcerun", "exact", "--quiet", "all").stderr.count("\n") <= 1


def test_folders_may_have_spaces(acted):
    config = {"results": "my results", "figures": "my figures", "studies": ["vision"]}
    done = acted.snakemake("--cores", "2", config=config)
    assert done.returncode == 0, done.stderr
    for name in ("claims.csv", "runs.csv"):
        assert (acted.root / "my figures/live/smoke" / name).is_file()


def test_a_changed_run_takes_its_children_and_figures_along(acted):
    parent = next(job["init"] for job in acted.jobs.values() if job["init"])
    children = [run for run, job in acted.jobs.items() if job["init"] == parent]
    study, name, _ = parent.split("/")
    changed = acted.to_do(config={"set": {f"{study}.runs.{name}.optimizer.lr": 1.0e-4}})
    assert changed == following(parent, *children)
    assert 1 < len(children) + 1 < len(of_study(acted, study))


def test_edited_code_runs_exactly_what_uses_it(acted):
    dense = [run for run, job in acted.jobs.items() if job["spec"]["model"].get("depth", {}).get("kind") == "dwa"]
    layer = "class DepthWeightedAverageLayer"
    acted.edit("src/formerlab/layers/depth/dwa.py", layer, f"CHANGED = 1\n\n\n{layer}")
    try:
        # What is timed beside them is timed again, and so is trained what trains for the time of one of them.
        equal = [run for run, job in acted.jobs.items() if job["equal_time"]]
        looked = {f"flow {run}" for run in acted.jobs if run.rpartition("/")[0] in looked_at()}
        pruned = {f"prune {run}" for run in dense if run in build_plan(acted.root, {})["prune"]}
        assert acted.to_do() == following(*dense, *equal) | looked | pruned | {"speed denseformer"}
    finally:
        acted.edit("src/formerlab/layers/depth/dwa.py", "CHANGED = 1\n\n\n", "")


@pytest.mark.parametrize(("scale", "rule"), [("overnight", "train"), ("pretrained", "load")])
def test_every_other_scale_has_a_dag(acted, scale, rule):
    found = acted.to_do(config={"scale": scale})
    assert {"exact", *ENDING} <= found
    studies = {entry.study for name, entry in catalogue().items() if f"draw_{name}" in found}
    assert studies == ({"decay"} if rule == "load" else {entry.study for entry in catalogue().values()})
    for name, least in {"data": 1, "prune": 1, rule: 5}.items():
        assert len([job for job in found if job.startswith(f"{name} ")]) >= least


@pytest.mark.skipif(not (ROOT / "slurm/config.yaml").exists(), reason="the repository has no Slurm profile")
def test_the_cluster_profile_plans_the_whole_programme(acted):
    acted.plan_ahead({"scale": "paper", "seeds": [0]})
    done = acted.snakemake("--profile", "slurm", "-n", "-p", config={"seeds": [0]})
    assert done.returncode == 0, done.stderr
    assert "results/live/paper/" in done.stdout
    found = jobs(done.stdout)
    assert not any(name.endswith("seed1") for name in found)
    assert {"track", "all"} <= found


def test_until_a_stage_whose_runs_grow_from_each_other_does_all_of_it(acted):
    parent = next(job["init"] for job in acted.jobs.values() if job["init"])
    tracked = acted.root / results(acted) / "mlflow.json"
    tracked.unlink()
    done = acted.snakemake("--cores", "1", "--forcerun", "data", "--until", "train", "--", parent.split("/")[0])
    assert done.returncode == 0, done.stderr
    assert "BUG" not in done.stderr
    assert tracked.exists()  # a study by its name leaves out the rule that tracks, and is tracked all the same
    assert acted.snakemake("--cores", "1").returncode == 0


def test_of_two_at_once_in_one_folder_the_second_is_refused_and_the_first_finishes(acted, tmp_path):
    words = (sys.executable, "-m", "snakemake", "--cores", "1", "--force", f"{results(acted)}/exact.csv")
    first = subprocess.Popen(
        words,
        cwd=acted.root,
        env=acted.environment | {"UNTIL": str(tmp_path / "go on")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (acted.root / "waiting").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = acted.snakemake("--cores", "1", "--forceall")
    (tmp_path / "go on").touch()
    assert second.returncode == 1
    assert "make unlock" in second.stderr
    assert second.stderr.count("\n") <= 2
    assert jobs(second.stdout + second.stderr) == set()
    assert first.wait() == 0
    assert acted.snakemake("--cores", "1").returncode == 0  # what follows from the forced one


def test_a_failed_sync_fails_no_job_and_is_done_again_by_the_next_call(acted):
    """The stand-in says, as a sync does, that the server was away."""
    tracked = acted.root / results(acted) / "mlflow.json"
    before = tracked.read_bytes()
    done = acted.snakemake("--cores", "1", "--forcerun", "track", FAILING="track")
    assert tracked.read_bytes() == before, "a job that fails deletes nothing"
    tracked.unlink()
    done = acted.snakemake("--cores", "1", FAILING="track")
    assert done.returncode == 1
    assert "this one fails" in done.stdout + done.stderr
    done = acted.snakemake("--cores", "1", AWAY="the server")
    assert done.returncode == 0, done.stderr
    assert [json.loads(tracked.read_text())[key] for key in ("status", "failures")] == ["failed", 1]
    assert acted.to_do() == {"track", "all"}
    assert acted.snakemake("--cores", "1").returncode == 0


def test_nothing_runs_twice_whatever_modification_times_say(acted):
    ahead = time.time() + 3600
    for folder in ("results", "figures"):
        for path in (acted.root / folder).rglob("*"):
            os.utime(path, (ahead, ahead))
    assert acted.to_do() == set()
    check = [sys.executable, "-m", "formerlab", "check"]  # which every start of the DAG calls; here a stand-in does not
    done = subprocess.run(check, cwd=acted.root, env=acted.environment, capture_output=True, text=True)
    assert "check the clocks" in done.stderr
    left = (path for folder in ("results", "figures") for path in (acted.root / folder).rglob("*") if path.is_file())
    assert max(path.stat().st_mtime for path in left) <= time.time()
    run = next(iter(of_study(acted, "vision")))
    (acted.root / results(acted) / run / "run.json").unlink()
    assert acted.snakemake("--cores", "1").returncode == 0  # what is younger than its reader's products fails it
    assert acted.to_do() == set()


@pytest.fixture(scope="module")
def copied(acted, tmp_path_factory):
    """What `cp -r` of the folder leaves."""
    return acted.copied(tmp_path_factory.mktemp("copy") / "of")


def judged(checkout, given=None):
    """Return the jobs that `status` does not call finished."""
    with chdir(checkout.root):
        return {
            f"{stage} {name}"
            for stage, name, state, _ in states(build_plan(Path(), given or {}))
            if state != "finished"
        }


def of_stages(found):
    """Return those of some jobs that `status` lists."""
    return {"exact claims" if job == "exact" else job for job in found if job.partition(" ")[0] in RECORDS}


def test_in_a_copy_the_dag_has_to_do_what_status_says(copied):
    assert judged(copied) == of_stages(copied.to_do()) == set()


@pytest.mark.parametrize("records", ["none", "Snakemake's own"])
def test_what_status_calls_stale_runs_again_whoever_made_it(acted, copied, records):
    checkout = copied if records == "none" else acted
    given = {"set": {"denseformer.optimizer.lr": 2.0e-3}}
    stale = judged(checkout, given)
    runs = of_study(checkout, "denseformer")
    assert {f"train {run}" for run in runs} <= stale
    found = checkout.to_do(config=given)
    assert of_stages(found) == stale
    assert drawn_from(*runs) | ENDING <= found


@pytest.mark.parametrize(
    ("note", "tried"),
    [({"MISTAKE": "no"}, 3), ({"MISTAKE": "yes"}, 1), ({}, 1)],
    ids=["a crash", "a mistake", "no word of its own"],
)
def test_what_crashes_is_tried_again_and_nothing_else(copied, note, tried):
    run = next(iter(of_study(copied, "vision")))
    (copied.root / "failures").unlink(missing_ok=True)
    target = f"{results(copied)}/{run}/run.json"
    before = (copied.root / target).read_bytes()
    done = copied.snakemake("--cores", "1", "--retries", "2", "--force", target, FAILING=run, **note)
    assert done.returncode == 1
    assert (copied.root / "failures").read_text().splitlines() == [f"train {run}"] * tried
    assert (copied.root / target).read_bytes() == before  # a stage deletes what it replaces, nobody else


def test_what_another_process_is_at_is_not_started(copied):
    run = next(iter(of_study(copied, "vision")))
    folder = copied.root / results(copied) / run
    with stage_note("train", folder):
        done = copied.snakemake("--cores", "1", "--force", f"{results(copied)}/{run}/run.json")
    assert done.returncode == 1
    assert f"train {run} is already running: process {os.getpid()} on " in done.stdout + done.stderr
    assert jobs(done.stdout + done.stderr) == set()
    assert (folder / "run.json").exists()


def test_a_submitted_job_runs_its_plan_whatever_the_configuration_says_now(copied):
    """As the Slurm executor starts it: another Snakemake, with the environment of the one that submitted."""
    run = next(iter(of_study(copied, "decay")))
    path, plan = copied.root / "submitted.json", build_plan(copied.root, {"set": {"decay.optimizer.lr": 3.0e-3}})
    write_json(path, plan)
    planned = plan["train"][run]["spec_hash"]
    assert planned != copied.jobs[run]["spec_hash"]
    config, record = copied.root / "config.yaml", copied.root / results(copied) / run / "run.json"
    before = config.read_text()
    config.write_text("edited: [while the job waits")
    words = ("--target-jobs", f"train:id={run}", "--allowed-rules", "train", "--cores", "1", "--attempt", "1")
    quiet = ("--force", "--nolock", "--no-hooks", "--ignore-incomplete", "--force-use-threads", "--mode", "remote")
    try:
        done = copied.snakemake(*words, *quiet, FORMERLAB_PLAN=str(path))
        assert done.returncode == 0, done.stderr
        assert json.loads(record.read_text())["spec_hash"] == planned
        lost = copied.snakemake(*words, *quiet)
        assert lost.returncode == 1
        assert "FORMERLAB_PLAN" in lost.stderr
    finally:
        config.write_text(before)
