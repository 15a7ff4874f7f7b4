"""The profile for schedulers other than Slurm, with shell scripts that run jobs as background processes."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest
from fixtures.checkout import ROOT
from gated_checkout import GATE, GatedCheckout, last_lines

PLUGIN = "snakemake_executor_plugin_cluster_generic"
RUN = "tokenformer/transformer-2/seed0"
SCHEDULER = {
    "submit": """
setsid sh -c '
    while [ -e "$0/hold" ]; do sleep 0.2; done
    sh "$1" >"$0/$$.log" 2>&1
    echo $? >"$0/$$.ended"
' "{jobs}" "$1" >/dev/null 2>&1 </dev/null &
touch "{jobs}/$!.log"
echo $!
""",
    "status": """
if [ -e "{jobs}/$1.ended" ]; then
    [ "$(cat "{jobs}/$1.ended")" = 0 ] && echo success || echo failed
elif pgrep --pgroup "$1" --runstates D,R,S >/dev/null; then echo running
else echo failed
fi
""",
    "cancel": 'for job; do kill -TERM "-$job"; done\n',
}
ANSWERS = {
    "DONE": "success",
    "EXIT": "failed",
    "PEND": "running",
    "Job <7> is not found": "failed",
    "LSF is down. Please wait": "running",
    "    job_state = F\n    Exit_status = 0": "success",
    "    job_state = F\n    Exit_status = 271": "failed",
    "    job_state = F": "failed",
    "    job_state = R": "running",
    "qstat: Unknown Job Id 7": "failed",
    "qstat: cannot connect to server": "running",
}


@pytest.fixture
def checkout(tmp_path):
    if importlib.util.find_spec(PLUGIN) is None:
        pytest.skip(f"{PLUGIN} is not installed")
    checkout = GatedCheckout(tmp_path)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name, text in SCHEDULER.items():
        write_program(checkout.bin / name, text.replace("{jobs}", str(jobs)))
    yield checkout
    for log in jobs.glob("*.log"):
        subprocess.run([checkout.bin / "cancel", log.stem], check=False, capture_output=True)


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


class SchedulerCall:
    """A Snakemake process that trains one run through the scheduler."""

    def __init__(self, checkout):
        self.checkout = checkout
        arguments = [f"{checkout.plan['results']}/{RUN}/run.json", "--profile", "cluster", "--latency-wait", "5"]
        arguments += [word for name in SCHEDULER for word in (f"--cluster-generic-{name}-cmd", name)]
        self.log = checkout.root / "call.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *arguments],
                cwd=checkout.root,
                env=checkout.environment,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, condition):
        end = time.monotonic() + 120
        while not (result := condition()):
            assert time.monotonic() < end, last_lines(self.log, 40)
            time.sleep(0.2)
        return result

    def at_gate(self):
        """Wait until the run is at its gate, and return the variables and arguments of its process."""
        return self.wait_for(lambda: self.assert_running() and self.checkout.reached(RUN))

    def assert_running(self):
        assert self.process.poll() is None, last_lines(self.log, 40)
        return True

    def wait_for_end(self):
        """Wait until Snakemake ends, and return its exit status and its log."""
        self.wait_for(lambda: self.process.poll() is not None)
        return self.process.returncode, self.log.read_text()


def submitted(jobs):
    """Return the ids of all submitted jobs."""
    return {path.stem for path in jobs.glob("*.log")}


def status(checkout, job):
    command = [checkout.bin / "status", job]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_interrupted_and_killed_calls_resume_from_the_checkpoint(checkout):
    jobs = checkout.root / "jobs"
    checkout.gate(RUN)
    call = SchedulerCall(checkout)
    job_arguments = call.at_gate()["arguments"]
    # the job has a time limit although this scheduler does not set SLURM_JOB_ID
    assert "--time-limit" in job_arguments
    call.process.send_signal(signal.SIGINT)
    assert call.wait_for_end()[0] != 0
    (first_job,) = submitted(jobs)
    call.wait_for(lambda: status(checkout, first_job) == "failed")

    checkout.gate(RUN)
    (jobs / "hold").touch()
    killed_call = SchedulerCall(checkout)
    (second_job,) = killed_call.wait_for(lambda: killed_call.assert_running() and submitted(jobs) - {first_job})
    incomplete_markers = checkout.root / ".snakemake/incomplete"
    killed_call.wait_for(lambda: any(second_job in path.read_text() for path in incomplete_markers.iterdir()))
    killed_call.process.kill()
    killed_call.process.wait()
    exit_status, log = SchedulerCall(checkout).wait_for_end()
    assert exit_status == 1
    assert f"train {RUN} is already running or queued: job {second_job}." in log  # the job is pending
    (jobs / "hold").unlink()
    killed_call.wait_for(lambda: checkout.reached(RUN))
    exit_status, log = SchedulerCall(checkout).wait_for_end()
    assert exit_status == 1
    assert f"train {RUN} is already running or queued: process " in log
    subprocess.run([checkout.bin / "cancel", second_job], check=True)
    call.wait_for(lambda: status(checkout, second_job) == "failed")

    exit_status, log = SchedulerCall(checkout).wait_for_end()
    assert exit_status == 0, log
    assert len(submitted(jobs)) == 3
    assert f"last.pt after step {GATE}" in (checkout.root / f"logs/smoke/train/{RUN}.log").read_text()
    assert checkout.file_hashes(checkout.results / RUN) == checkout.uninterrupted_hashes(RUN)


@pytest.mark.parametrize("answer", ANSWERS)
def test_status_of_lsf_and_pbs_jobs(answer, tmp_path):
    pbs = answer.startswith((" ", "qstat"))
    write_program(tmp_path / ("qstat" if pbs else "bjobs"), f"cat <<'END'\n{answer}\nEND\n")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", str(ROOT / "cluster/status.sh"), "7"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ANSWERS[answer]
