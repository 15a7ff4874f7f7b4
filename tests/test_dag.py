"""The DAG in a copy of the repository: which jobs run, and which jobs run again after a change.

Every job is replaced by a fake that only writes its output files, so all studies run in seconds.
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
from fixtures.checkout import ROOT, Checkout, figures_of_runs, jobs

from formerlab.files import write_json
from formerlab.plan.build import build_plan
from formerlab.plan.show import states
from formerlab.plan.staleness import RECORDS
from formerlab.report.catalogue import catalogue
from formerlab.results.notes import stage_note
from formerlab.results.stages import MEASURED, STAGES, TIMED

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dag")]


FINAL_JOBS = {"claims", "runs", "track", "all"}
"""Jobs that run after every change of a run."""

FAKE_PYTHON = Path(__file__).with_name("fixtures") / "fake_python.py"


@pytest.fixture(scope="module")
def finished_dag(tmp_path_factory):
    """Run the whole DAG of scale smoke with fake jobs, first with a failing run, then without; return the checkout."""
    checkout = Checkout(tmp_path_factory.mktemp("finished"))
    units = {"OF_RUN": {"train": STAGES["train"], **MEASURED}, "OF_STUDY": TIMED}
    written = [
        f"{unit} = { {name: stage.written for name, stage in stages.items()} }\n" for unit, stages in units.items()
    ]
    (checkout.bin / "python").write_text(f"#!{sys.executable} -IS\n{''.join(written)}{FAKE_PYTHON.read_text()}")
    (checkout.bin / "python").chmod(0o755)
    checkout.edit("config.yaml", "scale: laptop", "scale: smoke")
    checkout.jobs = build_plan(checkout.root, {})["train"]
    result = checkout.snakemake("--cores", "2", "--keep-going", FAILING=next(iter(of_study(checkout, "denseformer"))))
    assert result.returncode == 1
    checkout.output = result.stderr
    checkout.jobs_after_failure = checkout.to_do()
    assert checkout.snakemake("--cores", "2").returncode == 0
    return checkout


def results(finished_dag):
    return build_plan(finished_dag.root, {})["results"]


def of_study(finished_dag, study):
    """Return the runs of a study, by id."""
    return {run: job for run, job in finished_dag.jobs.items() if job["study"] == study}


@functools.cache
def flow_runs():
    """Return the runs (without seed) that the stage `flow` measures."""
    return {run.rpartition("/")[0] for run in build_plan(ROOT, {"scale": "smoke"})["flow"]}


def dependent_jobs(*runs):
    """Return the jobs that depend on these runs: training, flow, figures and the final jobs."""
    flow = {f"flow {run}" for run in runs if run.rpartition("/")[0] in flow_runs()}
    return {f"train {run}" for run in runs} | flow | figures_of_runs(*runs) | FINAL_JOBS


def test_a_failed_run_stops_only_dependent_jobs(finished_dag):
    assert finished_dag.jobs_after_failure == dependent_jobs(next(iter(of_study(finished_dag, "denseformer"))))


def test_the_output_has_a_line_per_stage_and_names_failed_jobs(finished_dag):
    failing = next(iter(of_study(finished_dag, "denseformer")))
    lines = finished_dag.output.splitlines()
    assert "\r" not in finished_dag.output
    assert len(lines) < 40  # the DAG has more than a hundred jobs
    named = lines.index(f"train {failing} did not finish; log logs/smoke/train/{failing}.log")
    assert lines[named + 1] == "    planned failure of this test"
    assert any(re.fullmatch(r"data +\d+ jobs done after +[\d:]+", line) for line in lines)


def test_folder_names_may_contain_spaces(finished_dag):
    config = {"results": "my results", "figures": "my figures", "studies": ["vision"]}
    result = finished_dag.snakemake("--cores", "2", config=config)
    assert result.returncode == 0, result.stderr
    for name in ("claims.csv", "runs.csv"):
        assert (finished_dag.root / "my figures/live/smoke" / name).is_file()


def test_a_changed_run_reruns_its_children_and_figures(finished_dag):
    parent = next(job["init"] for job in finished_dag.jobs.values() if job["init"])
    children = [run for run, job in finished_dag.jobs.items() if job["init"] == parent]
    study, name, _ = parent.split("/")
    changed = finished_dag.to_do(config={"set": {f"{study}.runs.{name}.optimizer.lr": 1.0e-4}})
    assert changed == dependent_jobs(parent, *children)
    assert 1 < len(children) + 1 < len(of_study(finished_dag, study))


def test_edited_code_reruns_exactly_the_jobs_that_use_it(finished_dag):
    dense = [
        run for run, job in finished_dag.jobs.items() if job["spec"]["model"].get("depth", {}).get("kind") == "dwa"
    ]
    layer = "class DepthWeightedAverageLayer"
    finished_dag.edit("src/formerlab/layers/depth/dwa.py", layer, f"CHANGED = 1\n\n\n{layer}")
    try:
        # The stage `speed` times all runs of a study, so it runs again, and so do equal-time runs, which depend on it.
        equal_time_runs = [run for run, job in finished_dag.jobs.items() if job["equal_time"]]
        flow_jobs = {f"flow {run}" for run in finished_dag.jobs if run.rpartition("/")[0] in flow_runs()}
        prune_jobs = {f"prune {run}" for run in dense if run in build_plan(finished_dag.root, {})["prune"]}
        assert finished_dag.to_do() == dependent_jobs(*dense, *equal_time_runs) | flow_jobs | prune_jobs | {
            "speed denseformer"
        }
    finally:
        finished_dag.edit("src/formerlab/layers/depth/dwa.py", "CHANGED = 1\n\n\n", "")


@pytest.mark.parametrize(("scale", "rule"), [("overnight", "train"), ("pretrained", "load")])
def test_scales_overnight_and_pretrained_have_a_dag(finished_dag, scale, rule):
    job_names = finished_dag.to_do(config={"scale": scale})
    assert {"exact", *FINAL_JOBS} <= job_names
    studies = {entry.study for name, entry in catalogue().items() if f"draw_{name}" in job_names}
    assert studies == ({"decay"} if rule == "load" else {entry.study for entry in catalogue().values()})
    for name, minimum in {"data": 1, "prune": 1, rule: 5}.items():
        assert len([job for job in job_names if job.startswith(f"{name} ")]) >= minimum


@pytest.mark.skipif(not (ROOT / "slurm/config.yaml").exists(), reason="the repository has no Slurm profile")
def test_the_slurm_profile_plans_scale_paper(finished_dag):
    finished_dag.plan_ahead({"scale": "paper", "seeds": [0]})
    result = finished_dag.snakemake("--profile", "slurm", "-n", "-p", config={"seeds": [0]})
    assert result.returncode == 0, result.stderr
    assert "results/live/paper/" in result.stdout
    job_names = jobs(result.stdout)
    assert not any(name.endswith("seed1") for name in job_names)
    assert {"track", "all"} <= job_names


def test_snakemake_until_train_also_trains_runs_with_a_parent(finished_dag):
    parent = next(job["init"] for job in finished_dag.jobs.values() if job["init"])
    tracked = finished_dag.root / results(finished_dag) / "mlflow.json"
    tracked.unlink()
    result = finished_dag.snakemake(
        "--cores", "1", "--forcerun", "data", "--until", "train", "--", parent.split("/")[0]
    )
    assert result.returncode == 0, result.stderr
    assert "BUG" not in result.stderr
    assert tracked.exists()  # the target <study> does not include the rule `track`, but the runs are tracked
    assert finished_dag.snakemake("--cores", "1").returncode == 0


def test_a_second_snakemake_in_the_same_folder_is_refused(finished_dag, tmp_path):
    command = (sys.executable, "-m", "snakemake", "--cores", "1", "--force", f"{results(finished_dag)}/exact.csv")
    first = subprocess.Popen(
        command,
        cwd=finished_dag.root,
        env=finished_dag.environment | {"WAIT_FOR_FILE": str(tmp_path / "continue")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (finished_dag.root / "waiting").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = finished_dag.snakemake("--cores", "1", "--forceall")
    (tmp_path / "continue").touch()
    assert second.returncode == 1
    assert "make unlock" in second.stderr
    assert second.stderr.count("\n") <= 2
    assert jobs(second.stdout + second.stderr) == set()
    assert first.wait() == 0
    assert finished_dag.snakemake("--cores", "1").returncode == 0  # jobs that depend on the forced job


def test_a_failed_sync_fails_no_job_and_the_next_call_repeats_it(finished_dag):
    """The fake job writes the record of a failed sync (the server cannot be reached)."""
    tracked = finished_dag.root / results(finished_dag) / "mlflow.json"
    original_bytes = tracked.read_bytes()
    result = finished_dag.snakemake("--cores", "1", "--forcerun", "track", FAILING="track")
    assert tracked.read_bytes() == original_bytes, "a failed job must not delete its output"
    assert result.returncode == 1
    assert "planned failure of this test" in result.stdout + result.stderr
    tracked.unlink()
    result = finished_dag.snakemake("--cores", "1", SERVER_DOWN="yes")
    assert result.returncode == 0, result.stderr
    assert [json.loads(tracked.read_text())[key] for key in ("status", "failures")] == ["failed", 1]
    assert finished_dag.to_do() == {"track", "all"}
    assert finished_dag.snakemake("--cores", "1").returncode == 0


def test_modification_times_in_the_future_rerun_no_job(finished_dag):
    ahead = time.time() + 3600
    outputs = [p for folder in ("results", "figures") for p in (finished_dag.root / folder / "live/smoke").rglob("*")]
    for path in outputs:
        os.utime(path, (ahead, ahead))
    assert finished_dag.to_do() == set()
    # every start of the DAG calls `check`, but the fake python of this test ignores it
    check = [sys.executable, "-m", "formerlab", "check"]
    result = subprocess.run(check, cwd=finished_dag.root, env=finished_dag.environment, capture_output=True, text=True)
    assert "check the clocks" in result.stderr
    assert max(path.stat().st_mtime for path in outputs if path.is_file()) <= time.time()
    run = next(iter(of_study(finished_dag, "vision")))
    (finished_dag.root / results(finished_dag) / run / "run.json").unlink()
    # Snakemake fails a job whose input is newer than its output
    assert finished_dag.snakemake("--cores", "1").returncode == 0


@pytest.fixture(scope="module")
def copied_dag(finished_dag, tmp_path_factory):
    """A copy of the checkout without Snakemake's records and with random modification times."""
    return finished_dag.copied(tmp_path_factory.mktemp("copy") / "of")


def unfinished_jobs(checkout, config=None):
    """Return the jobs that `status` lists as not finished."""
    with chdir(checkout.root):
        return {
            f"{stage} {name}"
            for stage, name, state, _ in states(build_plan(Path(), config or {}))
            if state != "finished"
        }


def jobs_in_status(job_names):
    """Return the jobs of the DAG that `status` lists."""
    return {"exact claims" if job == "exact" else job for job in job_names if job.partition(" ")[0] in RECORDS}


def test_in_a_copy_the_dag_and_status_agree(copied_dag):
    assert unfinished_jobs(copied_dag) == jobs_in_status(copied_dag.to_do()) == set()


@pytest.mark.parametrize("records", ["none", "Snakemake's own"])
def test_stale_outputs_run_again_with_and_without_snakemake_records(finished_dag, copied_dag, records):
    checkout = copied_dag if records == "none" else finished_dag
    config = {"set": {"denseformer.optimizer.lr": 2.0e-3}}
    stale = unfinished_jobs(checkout, config)
    runs = of_study(checkout, "denseformer")
    assert {f"train {run}" for run in runs} <= stale
    job_names = checkout.to_do(config=config)
    assert jobs_in_status(job_names) == stale
    assert figures_of_runs(*runs) | FINAL_JOBS <= job_names


@pytest.mark.parametrize(("mistake", "attempts"), [("no", 3), ("yes", 1)], ids=["a crash", "a mistake"])
def test_only_crashed_jobs_are_retried(copied_dag, mistake, attempts):
    run = next(iter(of_study(copied_dag, "vision")))
    (copied_dag.root / "failures").unlink(missing_ok=True)
    target = f"{results(copied_dag)}/{run}/run.json"
    original = (copied_dag.root / target).read_bytes()
    result = copied_dag.snakemake("--cores", "1", "--retries", "2", "--force", target, FAILING=run, MISTAKE=mistake)
    assert result.returncode == 1
    assert (copied_dag.root / "failures").read_text().splitlines() == [f"train {run}"] * attempts
    assert (copied_dag.root / target).read_bytes() == original  # only the stage itself deletes its old output


def test_a_job_that_another_process_runs_is_not_started(copied_dag):
    run = next(iter(of_study(copied_dag, "vision")))
    folder = copied_dag.root / results(copied_dag) / run
    with stage_note("train", folder):
        result = copied_dag.snakemake("--cores", "1", "--force", f"{results(copied_dag)}/{run}/run.json")
    assert result.returncode == 1
    assert f"train {run} is already running or queued: process {os.getpid()} on " in result.stdout + result.stderr
    assert jobs(result.stdout + result.stderr) == set()
    assert (folder / "run.json").exists()


def test_a_submitted_job_uses_its_plan_after_the_configuration_changed(copied_dag):
    """Start the job as the Slurm executor does: a second Snakemake with the environment of the submitting Snakemake."""
    run = next(iter(of_study(copied_dag, "decay")))
    path, plan = (
        copied_dag.root / "submitted.json",
        build_plan(copied_dag.root, {"set": {"decay.optimizer.lr": 3.0e-3}}),
    )
    write_json(path, plan)
    planned = plan["train"][run]["spec_hash"]
    assert planned != copied_dag.jobs[run]["spec_hash"]
    config, record = copied_dag.root / "config.yaml", copied_dag.root / results(copied_dag) / run / "run.json"
    original_text = config.read_text()
    config.write_text("edited: [while the job waits")
    job_options = ("--target-jobs", f"train:id={run}", "--allowed-rules", "train", "--cores", "1", "--attempt", "1")
    executor_options = (
        "--force",
        "--nolock",
        "--no-hooks",
        "--ignore-incomplete",
        "--force-use-threads",
        "--mode",
        "remote",
    )
    try:
        result = copied_dag.snakemake(*job_options, *executor_options, FORMERLAB_PLAN=str(path))
        assert result.returncode == 0, result.stderr
        assert json.loads(record.read_text())["spec_hash"] == planned
        without_plan = copied_dag.snakemake(*job_options, *executor_options)
        assert without_plan.returncode == 1
        assert "FORMERLAB_PLAN" in without_plan.stderr
    finally:
        config.write_text(original_text)
