"""The profile for schedulers other than Slurm, with a scheduler that runs its jobs in the background."""

import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest
from fixtures.checkout import ROOT
from laboratory import GATE, Laboratory, last_lines

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
def laboratory(tmp_path):
    if importlib.util.find_spec(PLUGIN) is None:
        pytest.skip(f"{PLUGIN} is not installed")
    laboratory = Laboratory(tmp_path)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name, text in SCHEDULER.items():
        program(laboratory.bin / name, text.replace("{jobs}", str(jobs)))
    yield laboratory
    for log in jobs.glob("*.log"):
        subprocess.run([laboratory.bin / "cancel", log.stem], check=False, capture_output=True)


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


class Head:
    """A Snakemake that trains one run through the scheduler."""

    def __init__(self, laboratory):
        self.laboratory = laboratory
        words = [f"{laboratory.plan['results']}/{RUN}/run.json", "--profile", "cluster", "--latency-wait", "5"]
        words += [word for name in SCHEDULER for word in (f"--cluster-generic-{name}-cmd", name)]
        self.log = laboratory.root / "head.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *words],
                cwd=laboratory.root,
                env=laboratory.environment,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, condition):
        end = time.monotonic() + 120
        while not (found := condition()):
            assert time.monotonic() < end, last_lines(self.log, 40)
            time.sleep(0.2)
        return found

    def at_gate(self):
        """Wait until the run is at its gate, and return what it sees there."""
        return self.wait_for(lambda: self.runs() and self.laboratory.reached(RUN))

    def runs(self):
        assert self.process.poll() is None, last_lines(self.log, 40)
        return True

    def ends(self):
        """Wait for the end, and return the exit status and the log."""
        self.wait_for(lambda: self.process.poll() is not None)
        return self.process.returncode, self.log.read_text()


def submitted(jobs):
    """Return the ids of all jobs so far."""
    return {path.stem for path in jobs.glob("*.log")}


def status(laboratory, job):
    words = [laboratory.bin / "status", job]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_an_interrupted_and_a_killed_call_continue_where_their_job_was_saved(laboratory):
    jobs = laboratory.root / "jobs"
    laboratory.gate(RUN)
    head = Head(laboratory)
    words = head.at_gate()["words"]
    assert "--time-limit" in words  # of a scheduler that sets no SLURM_JOB_ID
    head.process.send_signal(signal.SIGINT)
    assert head.ends()[0] != 0
    (first,) = submitted(jobs)
    head.wait_for(lambda: status(laboratory, first) == "failed")

    laboratory.gate(RUN)
    (jobs / "hold").touch()
    killed = Head(laboratory)
    (second,) = killed.wait_for(lambda: killed.runs() and submitted(jobs) - {first})
    noted = laboratory.root / ".snakemake/incomplete"
    killed.wait_for(lambda: any(second in path.read_text() for path in noted.iterdir()))
    killed.process.kill()
    killed.process.wait()
    code, said = Head(laboratory).ends()
    assert code == 1
    assert f"train {RUN} is already running: job {second}." in said  # it waits
    (jobs / "hold").unlink()
    killed.wait_for(lambda: laboratory.reached(RUN))
    code, said = Head(laboratory).ends()
    assert code == 1
    assert f"train {RUN} is already running: process " in said
    subprocess.run([laboratory.bin / "cancel", second], check=True)
    head.wait_for(lambda: status(laboratory, second) == "failed")

    code, said = Head(laboratory).ends()
    assert code == 0, said
    assert len(submitted(jobs)) == 3
    assert f"continuing after step {GATE}" in (laboratory.root / f"logs/smoke/train/{RUN}.log").read_text()
    assert laboratory.bits(laboratory.results / RUN) == laboratory.left_alone(RUN)


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_status_of_a_job_of_lsf_or_pbs(answer, tmp_path):
    pbs = answer.startswith((" ", "qstat"))
    program(tmp_path / ("qstat" if pbs else "bjobs"), f"cat <<'END'\n{answer}\nEND\n")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = ["sh", str(ROOT / "cluster/status.sh"), "7"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ANSWERS[answer]
