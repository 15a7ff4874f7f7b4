"""What a cluster does to jobs, done to training runs of the DAG: each ends with the bits of a run left alone.

The runs wait at a gate (gate.py) for their fault, so nothing here depends on how fast a machine is.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.checkout import Checkout

from formerlab.files import sha256
from formerlab.plan.locate import read_plan

pytestmark = pytest.mark.slow

TINY = """
studies: [tokenformer, denseformer, decay]
tracking_uri: ""
scale.data.text:
  source: {kind: files, paths: [words.txt], documents: paragraph}
  tokenizer: {vocabulary: 270}
  questions: 0
scale.studies.tokenformer.only: [transformer-2, tokenformer-1]
scale.studies.denseformer.only: ["plain-*", "dwa-*"]
tokenformer: {steps: 8, evaluate_every: 4, log_every: 2}
denseformer: {steps: 8, evaluate_every: 4, log_every: 2}
decay: {steps: 8, evaluate_every: 4, log_every: 2}
"""
LOOP = "        while state.step < run.steps:\n"
SAME_BITS = ("weights.safetensors", "train.csv", "eval.csv", "test.csv")
GATE = 5
"""The step after which a run waits."""


class Laboratory(Checkout):
    """A checkout with prepared data and runs that wait at gates."""

    def __init__(self, root):
        super().__init__(root)
        paragraphs = [" ".join(f"w{i * j % 97}" for j in range(60)) for i in range(400)]
        (root / "words.txt").write_text("\n\n".join(paragraphs))
        (root / "tiny.yaml").write_text(TINY)
        self.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: tiny.yaml")
        self.edit("slurm/paper.yaml", "scale: paper", "scale: smoke")
        shutil.copy(Path(__file__).with_name("gate.py"), root / "src/gate.py")
        passing = f"        import gate\n\n{LOOP}            gate.pass_through(run.id, state, hooks)\n"
        self.edit("src/formerlab/training/loop.py", LOOP, passing)
        prepared = self.snakemake("--cores", "1", "data_only")
        assert prepared.returncode == 0, prepared.stderr
        (path,) = (root / ".formerlab/plans").iterdir()
        self.plan_path, self.plan = path, read_plan(path)
        self.runs = list(self.plan["train"])
        self.results = root / self.plan["results"]
        self.process = None

    def gate(self, run, **order):
        path = self.root / "gates" / f"{run}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".reached").unlink(missing_ok=True)
        path.write_text(json.dumps({"step": GATE} | order))

    def reached(self, run):
        """Return what the job that waits at the gate of a run sees of its surroundings, if one does."""
        path = self.root / "gates" / f"{run}.reached"
        return json.loads(path.read_text()) if path.exists() else None

    def start(self, slurm, runs, *words):
        """Train runs through Slurm, in the background."""
        targets = [f"{self.plan['results']}/{run}/run.json" for run in runs]
        quick = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
        self.log = self.root / "snakemake.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *targets, "--profile", "slurm", *quick, *words],
                cwd=self.root,
                env=self.environment | slurm.variables(),
                stdout=log,
                stderr=log,
            )

    def job_at_gate(self, slurm, run):
        """Wait for a run at its gate and return its Slurm job."""

        def arrived():
            assert self.process.poll() is None, self.log.read_text()
            return self.reached(run)

        return slurm.wait_for(arrived)["SLURM_JOB_ID"]

    def finish(self, *runs):
        """Wait for the DAG, and compare every run with the same one left alone."""
        assert self.process.wait(timeout=600) == 0, self.log.read_text()
        for run in runs:
            assert self.bits(self.results / run) == self.left_alone(run)
            assert f"continuing after step {GATE}" in (self.root / f"logs/smoke/train/{run}.log").read_text()

    def slurm_logs(self, run):
        """Return what the jobs of a run said, the first job first."""
        folder = self.root / "logs/slurm/rule_train" / run.replace("/", "_")
        return [path.read_text() for path in sorted(folder.glob("*.log"), key=lambda path: int(path.stem))]

    def left_alone(self, run):
        """Return the bits of a run that nothing disturbs, trained here and now."""
        alone = self.root / "alone"
        path = self.root / "alone.json"
        path.write_text(json.dumps(self.plan | {"results": str(alone)}))
        words = [sys.executable, "-m", "formerlab", "train", run, "--plan", str(path)]
        quiet = self.environment | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        done = subprocess.run(words, cwd=self.root, env=quiet, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return self.bits(alone / run)

    @staticmethod
    def bits(folder):
        return {name: sha256(folder / name) for name in SAME_BITS}


@pytest.fixture(scope="module")
def whole_laboratory(slurm, tmp_path_factory):
    return Laboratory(tmp_path_factory.mktemp("laboratory"))


@pytest.fixture
def laboratory(whole_laboratory):
    yield whole_laboratory
    if whole_laboratory.process is not None:
        whole_laboratory.process.kill()  # where a test failed, the DAG may still wait for its jobs
        whole_laboratory.process.wait()


def history(slurm, laboratory, run, *fields):
    """Return what the accounting says of the jobs of one run, by the logs that Slurm wrote, oldest first."""
    folder = laboratory.root / "logs/slurm/rule_train" / run.replace("/", "_")
    jobs = {path.stem for path in folder.glob("*.log")}
    rows = [row[1:] for row in slurm.accounts("JobID", *fields) if row[0] in jobs]
    return [tuple(cell.split()[0] for cell in row) for row in rows]  # without "by 0" of CANCELLED


def test_cancelled_killed_for_memory_and_requeued(slurm, laboratory):
    cancelled, greedy, requeued = runs = laboratory.runs[:3]
    for run in (cancelled, requeued):
        laboratory.gate(run)
    laboratory.gate(greedy, memory_mb=1000, greedy=True)
    laboratory.start(slurm, runs)
    slurm.run("scancel", laboratory.job_at_gate(slurm, cancelled))
    job = laboratory.job_at_gate(slurm, requeued)
    slurm.run("scontrol", "requeue", job)
    slurm.wait_for(lambda: ("REQUEUED",) in history(slurm, laboratory, requeued, "State"))
    slurm.start_again(job)
    laboratory.finish(*runs)
    assert history(slurm, laboratory, cancelled, "State") == [("CANCELLED",), ("COMPLETED",)]
    assert f"stopped after step {GATE} of 8 (SIGTERM)" in laboratory.slurm_logs(cancelled)[0]
    assert history(slurm, laboratory, requeued, "State") == [("REQUEUED",), ("COMPLETED",)]
    (first, less), *_, (last, more) = history(slurm, laboratory, greedy, "State", "ReqMem")
    assert first in ("FAILED", "OUT_OF_MEMORY")
    assert last == "COMPLETED"
    assert float(more.rstrip("M")) >= 1.5 * float(less.rstrip("M")) - 1


def test_a_run_longer_than_its_job_goes_on_in_the_next_and_a_deaf_one_is_killed_and_goes_on(slurm, laboratory):
    patient, deaf = runs = laboratory.runs[3:5]
    laboratory.gate(patient)
    laboratory.gate(deaf, deaf=True)
    laboratory.start(slurm, runs, "--set-resources", "train:runtime=2 if attempt == 1 else 10")
    job = laboratory.job_at_gate(slurm, deaf)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")  # no more waiting than it takes
    laboratory.finish(*runs)
    first, _ = laboratory.slurm_logs(patient)
    assert re.search(rf"stopped after step {GATE} of 8 \(the time limit of \d+ s is near\)", first)
    assert history(slurm, laboratory, patient, "State") == [("FAILED",), ("COMPLETED",)]
    assert history(slurm, laboratory, deaf, "State") == [("TIMEOUT",), ("COMPLETED",)]


def test_preempted_and_then_its_node_is_lost(slurm, laboratory):
    (run,) = runs = laboratory.runs[5:6]
    laboratory.gate(run)
    laboratory.start(slurm, runs, "--set-resources", "train:gpu=1")
    job = laboratory.job_at_gate(slurm, run)
    assert laboratory.reached(run)["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    laboratory.gate(run)
    words = ("--partition=urgent", "--gpus=2", "--mem=100", "--output=/dev/null", "--wrap=true")
    slurm.run("sbatch", *words)
    slurm.wait_for(lambda: ("PREEMPTED",) in history(slurm, laboratory, run, "State"))
    slurm.start_again(job)
    assert laboratory.job_at_gate(slurm, run) == job
    slurm.kill_node()
    slurm.wait_for(lambda: ("NODE_FAIL",) in history(slurm, laboratory, run, "State"))
    slurm.start_node()
    slurm.start_again(job)
    laboratory.finish(*runs)
    states = [state for (state,) in history(slurm, laboratory, run, "State")]
    assert states == ["PREEMPTED", "NODE_FAIL", "COMPLETED"]
