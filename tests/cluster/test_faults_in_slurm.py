"""What a cluster does to jobs, done to training runs of the DAG: each ends with the bits of a run left alone.

The runs wait at a gate (gate.py) for their fault, so nothing here depends on how fast a machine is.
"""

import re
import signal
from contextlib import contextmanager

import pytest
from laboratory import GATE, MOST_JOBS, Laboratory, history

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole_laboratory(slurm, tmp_path_factory):
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


@pytest.fixture
def laboratory(slurm, whole_laboratory):
    yield whole_laboratory
    if whole_laboratory.process is not None:
        whole_laboratory.process.kill()  # where a test failed, the DAG may still wait for its jobs
        whole_laboratory.process.wait()
        slurm.clear()


def test_cancelled_killed_for_memory_and_requeued(slurm, laboratory):
    cancelled, greedy, requeued = runs = laboratory.runs[:3]
    for run in (cancelled, requeued):
        laboratory.gate(run)
    laboratory.gate(greedy, memory_mb=1000, greedy=True)
    laboratory.start(slurm, runs)
    slurm.run("scancel", laboratory.job_at_gate(cancelled))
    job = laboratory.job_at_gate(requeued)
    slurm.run("scontrol", "requeue", job)
    slurm.wait_for(lambda: ("REQUEUED",) in history(slurm, laboratory, requeued, "State"))
    slurm.start_again(job)
    laboratory.finish(*runs)
    assert history(slurm, laboratory, cancelled, "State") == [("CANCELLED",), ("COMPLETED",)]
    assert history(slurm, laboratory, requeued, "State") == [("REQUEUED",), ("COMPLETED",)]
    (first, less), *_, (last, more) = history(slurm, laboratory, greedy, "State", "ReqMem")
    assert first in ("FAILED", "OUT_OF_MEMORY")
    assert last == "COMPLETED"
    assert float(more.rstrip("M")) >= 1.5 * float(less.rstrip("M")) - 1


def test_a_run_longer_than_its_job_goes_on_in_the_next_and_a_deaf_one_is_killed_and_goes_on(slurm, laboratory):
    patient, deaf = runs = laboratory.runs[3:5]
    laboratory.gate(patient)
    laboratory.gate(deaf, deaf=True)
    laboratory.start(slurm, runs, "--set-resources", "train:runtime=1 + attempt")
    job = laboratory.job_at_gate(deaf)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # no more waiting than it takes
    laboratory.finish(*runs)  # the next job of the deaf run would be refused if its process had outlived its own
    # On a very slow machine a run comes to its gate in its second job, which has more time.
    *_, last_but_one, _ = laboratory.slurm_logs(patient)
    assert re.search(rf"stopped after step {GATE} of 8 \(the time limit of \d+ s is near\)", last_but_one)
    assert history(slurm, laboratory, patient, "State")[-2:] == [("FAILED",), ("COMPLETED",)]
    assert history(slurm, laboratory, deaf, "State")[-2:] == [("TIMEOUT",), ("COMPLETED",)]


def test_preempted_and_then_its_node_is_lost(slurm, laboratory):
    (run,) = runs = laboratory.runs[5:6]
    laboratory.gate(run)
    laboratory.start(slurm, runs, "--set-resources", "train:gpu=1")
    job = laboratory.job_at_gate(run)
    assert laboratory.reached(run)["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    laboratory.gate(run)
    words = ("--partition=urgent", "--gpus=2", "--mem=100", "--output=/dev/null", "--wrap=true")
    slurm.run("sbatch", *words)
    slurm.wait_for(lambda: ("PREEMPTED",) in history(slurm, laboratory, run, "State"))
    slurm.start_again(job)
    assert laboratory.job_at_gate(run) == job
    slurm.kill_node()
    slurm.wait_for(lambda: ("NODE_FAIL",) in history(slurm, laboratory, run, "State"))
    slurm.start_node()
    slurm.start_again(job)
    laboratory.finish(*runs)
    states = [state for (state,) in history(slurm, laboratory, run, "State")]
    assert states == ["PREEMPTED", "NODE_FAIL", "COMPLETED"]


@pytest.fixture
def waiting(slurm, laboratory):
    """Return a function that submits runs and has them wait in the queue until the block ends."""

    @contextmanager
    def waiting(*runs):
        slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
        try:
            laboratory.start(slurm, runs)
            slurm.wait_for(lambda: slurm.run("squeue", "--noheader", "--format=%T").split() == ["PENDING"] * len(runs))
            yield
        finally:
            slurm.run("scontrol", "update", "PartitionName=main", "State=UP")

    return waiting


def test_a_job_that_waits_runs_the_plan_it_was_submitted_with_and_a_mistake_is_made_once(slurm, laboratory, waiting):
    patient, mistaken = laboratory.runs[6:8]
    laboratory.gate(mistaken, mistake="something to mend; mend it")
    overlay = laboratory.root / "tiny.yaml"
    before = overlay.read_text()
    try:
        with waiting(patient, mistaken):
            overlay.write_text(before.replace("steps: 8", "steps: 12"))
        laboratory.ends(status=1)
    finally:
        overlay.write_text(before)
    assert laboratory.bits(laboratory.results / patient) == laboratory.left_alone(patient)
    assert history(slurm, laboratory, patient, "State") == [("COMPLETED",)]
    assert history(slurm, laboratory, mistaken, "State") == [("FAILED",)]
    assert "error: something to mend; mend it" in laboratory.slurm_logs(mistaken)[0]


def test_a_job_whose_code_was_edited_while_it_waited_refuses_once(slurm, laboratory, waiting):
    (run,) = laboratory.runs[8:9]
    path = laboratory.root / "src/formerlab/training/loop.py"
    before = path.read_text()
    try:
        with waiting(run):
            path.write_text(before.replace("def train(", "CHANGED = 1\n\n\ndef train("))
        laboratory.ends(status=1)
        assert history(slurm, laboratory, run, "State") == [("FAILED",)]
        (said,) = laboratory.slurm_logs(run)
        assert (
            f"error: train {run}: its code has changed since it was planned (training/loop.py); start snakemake" in said
        )
    finally:
        path.write_text(before)


def test_after_the_head_was_killed_its_job_goes_on_and_nothing_is_started_twice_or_deleted(slurm, laboratory):
    (run,) = laboratory.runs[9:10]
    target = f"{laboratory.plan['results']}/{run}/run.json"
    laboratory.gate(run)
    laboratory.start(slurm, [run])
    job = laboratory.job_at_gate(run)
    laboratory.process.kill()
    laboratory.process.wait()
    assert laboratory.snakemake("--unlock").returncode == 0
    laboratory.start(slurm, [run])
    laboratory.ends(status=1)
    busy = f"train {run} is already running: Slurm job {job}. Wait for it or stop it with `scancel {job}`"
    assert busy in laboratory.log.read_text()
    # Also a call that does not look is refused by the run itself, and leaves its files alone.
    blind = laboratory.snakemake("--cores", "1", "--nolock", "--no-hooks", "--force", target)
    assert "is already running here" in blind.stdout + blind.stderr
    laboratory.root.joinpath("gates", f"{run}.open").touch()
    laboratory.wait_for(lambda: not slurm.run("squeue", "--noheader"))
    laboratory.start(slurm, [run])
    laboratory.ends()
    assert history(slurm, laboratory, run, "State") == [("COMPLETED",)]
    assert laboratory.bits(laboratory.results / run) == laboratory.left_alone(run)


def test_a_head_whose_terminal_is_closed_stops_its_jobs_saved_and_leaves_no_lock(slurm, laboratory):
    (run,) = runs = laboratory.runs[10:11]
    laboratory.gate(run)
    laboratory.start(slurm, runs)
    laboratory.job_at_gate(run)
    laboratory.process.send_signal(signal.SIGHUP)
    laboratory.ends(status=1)
    laboratory.wait_for(lambda: not slurm.run("squeue", "--noheader"))
    laboratory.start(slurm, runs)
    laboratory.finish(*runs)
    assert history(slurm, laboratory, run, "State") == [("CANCELLED",), ("COMPLETED",)]


@pytest.mark.parametrize(
    ("resource", "reason"),
    [("slurm_partition=nosuch", "invalid partition"), ("slurm_account=nosuch", "nosuch"), ("mem_mb=99000000", "emory")],
)
def test_what_slurm_refuses_is_said_once_and_not_tried_again(slurm, laboratory, resource, reason):
    runs = laboratory.runs[11:13]
    laboratory.start(slurm, runs, "--set-resources", f"train:{resource}")
    laboratory.ends(status=1)
    said = laboratory.log.read_text()
    assert said.count(" could not be submitted: ") == 1
    assert reason in said
    assert "is restarted" not in said
    assert "Traceback" not in said


def test_a_crash_is_tried_again_a_few_times(slurm, laboratory):
    (run,) = laboratory.runs[13:14]
    laboratory.gate(run, crash="a mistake in the code")
    laboratory.start(slurm, [run])
    laboratory.ends(status=1)
    assert history(slurm, laboratory, run, "State") == [("FAILED",)] * MOST_JOBS
