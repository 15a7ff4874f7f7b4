"""Faults of a cluster (cancelled, killed, requeued and preempted jobs) in training runs of the DAG.

Every run must be bit-identical to an uninterrupted run. Runs pause at a gate (gate.py) until the fault, so the tests do
not depend on the speed of the machine.
"""

import re
import signal
from contextlib import contextmanager

import pytest
from gated_checkout import GATE, MAX_JOBS, GatedCheckout, history

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_checkout(slurm, tmp_path_factory):
    return GatedCheckout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def checkout(slurm, shared_checkout):
    yield shared_checkout
    if shared_checkout.process is not None:
        shared_checkout.process.kill()  # after a failed test, Snakemake may still wait for its jobs
        shared_checkout.process.wait()
        slurm.clear()


def test_cancelled_killed_and_requeued_runs_are_bit_identical(slurm, checkout):
    cancelled_run, large_run, requeued_run = runs = checkout.runs[:3]
    for run in (cancelled_run, requeued_run):
        checkout.gate(run)
    checkout.gate(large_run, memory_mb=1000, waits_for_kill=True)
    checkout.start(slurm, runs)
    slurm.run("scancel", checkout.job_at_gate(cancelled_run))
    job = checkout.job_at_gate(requeued_run)
    slurm.run("scontrol", "requeue", job)
    slurm.wait_for(lambda: ("REQUEUED",) in history(slurm, checkout, requeued_run, "State"))
    slurm.start_again(job)
    checkout.finish_and_compare(*runs)
    assert history(slurm, checkout, cancelled_run, "State") == [("CANCELLED",), ("COMPLETED",)]
    assert history(slurm, checkout, requeued_run, "State") == [("REQUEUED",), ("COMPLETED",)]
    (first_state, first_memory), *_, (last_state, last_memory) = history(slurm, checkout, large_run, "State", "ReqMem")
    assert first_state in ("FAILED", "OUT_OF_MEMORY")
    assert last_state == "COMPLETED"
    assert float(last_memory.rstrip("M")) >= 1.5 * float(first_memory.rstrip("M")) - 1


def test_runs_longer_than_their_job_continue_in_the_next_job(slurm, checkout):
    stopping_run, ignoring_run = runs = checkout.runs[3:5]
    checkout.gate(stopping_run)
    checkout.gate(ignoring_run, ignores_stop=True)
    checkout.start(slurm, runs, "--set-resources", "train:runtime=1 + attempt")
    job = checkout.job_at_gate(ignoring_run)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # end the job within a minute
    # This fails if a process of the killed job is still running, because the next job is then refused.
    checkout.finish_and_compare(*runs)
    # On a very slow machine the run reaches its gate only in its second job, which has a longer time limit.
    *_, last_but_one, _ = checkout.slurm_logs(stopping_run)
    assert re.search(rf"stopped after step {GATE} of 8 \(the time limit of \d+ s is near\)", last_but_one)
    assert history(slurm, checkout, stopping_run, "State")[-2:] == [("FAILED",), ("COMPLETED",)]
    assert history(slurm, checkout, ignoring_run, "State")[-2:] == [("TIMEOUT",), ("COMPLETED",)]


def test_a_preempted_run_whose_node_then_fails_is_bit_identical(slurm, checkout):
    (run,) = runs = checkout.runs[5:6]
    checkout.gate(run)
    checkout.start(slurm, runs, "--set-resources", "train:gpu=1")
    job = checkout.job_at_gate(run)
    assert checkout.reached(run)["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    checkout.gate(run)
    options = ("--partition=urgent", "--gpus=2", "--mem=100", "--output=/dev/null", "--wrap=true")
    slurm.run("sbatch", *options)
    slurm.wait_for(lambda: ("PREEMPTED",) in history(slurm, checkout, run, "State"))
    slurm.start_again(job)
    assert checkout.job_at_gate(run) == job
    slurm.kill_node()
    slurm.wait_for(lambda: ("NODE_FAIL",) in history(slurm, checkout, run, "State"))
    slurm.start_node()
    slurm.start_again(job)
    checkout.finish_and_compare(*runs)
    states = [state for (state,) in history(slurm, checkout, run, "State")]
    assert states == ["PREEMPTED", "NODE_FAIL", "COMPLETED"]


@pytest.fixture
def pending_jobs(slurm, checkout):
    """Return a context manager that submits runs and keeps them pending in the queue until the block ends."""

    @contextmanager
    def pending_jobs(*runs):
        slurm.run("scontrol", "update", "PartitionName=main", "State=DOWN")
        try:
            checkout.start(slurm, runs)
            slurm.wait_for(lambda: slurm.run("squeue", "--noheader", "--format=%T").split() == ["PENDING"] * len(runs))
            yield
        finally:
            slurm.run("scontrol", "update", "PartitionName=main", "State=UP")

    return pending_jobs


def test_a_pending_job_keeps_its_plan_and_a_user_error_is_not_retried(slurm, checkout, pending_jobs):
    valid_run, invalid_run = checkout.runs[6:8]
    checkout.gate(invalid_run, mistake="something to mend; mend it")
    overlay = checkout.root / "tiny.yaml"
    original_text = overlay.read_text()
    try:
        with pending_jobs(valid_run, invalid_run):
            overlay.write_text(original_text.replace("steps: 8", "steps: 12"))
        checkout.wait_for_end(status=1)
    finally:
        overlay.write_text(original_text)
    assert checkout.file_hashes(checkout.results / valid_run) == checkout.uninterrupted_hashes(valid_run)
    assert history(slurm, checkout, valid_run, "State") == [("COMPLETED",)]
    assert history(slurm, checkout, invalid_run, "State") == [("FAILED",)]
    assert "error: something to mend; mend it" in checkout.slurm_logs(invalid_run)[0]


def test_a_pending_job_with_edited_code_fails_without_a_retry(slurm, checkout, pending_jobs):
    (run,) = checkout.runs[8:9]
    path = checkout.root / "src/formerlab/training/loop.py"
    original_text = path.read_text()
    try:
        with pending_jobs(run):
            path.write_text(original_text.replace("def train(", "CHANGED = 1\n\n\ndef train("))
        checkout.wait_for_end(status=1)
        assert history(slurm, checkout, run, "State") == [("FAILED",)]
        (log,) = checkout.slurm_logs(run)
        assert (
            f"error: train {run}: its code has changed since it was planned (training/loop.py); start snakemake" in log
        )
    finally:
        path.write_text(original_text)


def test_jobs_survive_a_killed_snakemake_and_are_not_started_twice(slurm, checkout):
    (run,) = checkout.runs[9:10]
    target = f"{checkout.plan['results']}/{run}/run.json"
    checkout.gate(run)
    checkout.start(slurm, [run])
    job = checkout.job_at_gate(run)
    checkout.process.kill()
    checkout.process.wait()
    assert checkout.snakemake("--unlock").returncode == 0
    checkout.start(slurm, [run])
    checkout.wait_for_end(status=1)
    message = f"train {run} is already running or queued: Slurm job {job}. Wait for it or stop it with `scancel {job}`"
    assert message in checkout.log.read_text()
    # With --nolock and --no-hooks Snakemake does not look for running jobs. The stage then refuses to start and leaves
    # the files of the run unchanged.
    unchecked_call = checkout.snakemake("--cores", "1", "--nolock", "--no-hooks", "--force", target)
    assert "is already running here" in unchecked_call.stdout + unchecked_call.stderr
    checkout.root.joinpath("gates", f"{run}.open").touch()
    checkout.wait_for(lambda: not slurm.run("squeue", "--noheader"))
    checkout.start(slurm, [run])
    checkout.wait_for_end()
    assert history(slurm, checkout, run, "State") == [("COMPLETED",)]
    assert checkout.file_hashes(checkout.results / run) == checkout.uninterrupted_hashes(run)


def test_after_sighup_to_snakemake_its_jobs_stop_the_lock_is_removed_and_runs_resume(slurm, checkout):
    (run,) = runs = checkout.runs[10:11]
    checkout.gate(run)
    checkout.start(slurm, runs)
    checkout.job_at_gate(run)
    checkout.process.send_signal(signal.SIGHUP)
    checkout.wait_for_end(status=1)
    checkout.wait_for(lambda: not slurm.run("squeue", "--noheader"))
    checkout.start(slurm, runs)
    checkout.finish_and_compare(*runs)
    assert history(slurm, checkout, run, "State") == [("CANCELLED",), ("COMPLETED",)]


@pytest.mark.parametrize(
    ("resource", "reason"),
    [("slurm_partition=nosuch", "invalid partition"), ("slurm_account=nosuch", "nosuch"), ("mem_mb=99000000", "emory")],
)
def test_a_refused_submission_prints_one_message_and_is_not_retried(slurm, checkout, resource, reason):
    runs = checkout.runs[11:13]
    checkout.start(slurm, runs, "--set-resources", f"train:{resource}")
    checkout.wait_for_end(status=1)
    log = checkout.log.read_text()
    assert log.count(" could not be submitted: ") == 1
    assert reason in log
    assert "is restarted" not in log
    assert "Traceback" not in log


def test_a_crashed_job_is_retried_three_times(slurm, checkout):
    (run,) = checkout.runs[13:14]
    checkout.gate(run, crash="a mistake in the code")
    checkout.start(slurm, [run])
    checkout.wait_for_end(status=1)
    assert history(slurm, checkout, run, "State") == [("FAILED",)] * MAX_JOBS
