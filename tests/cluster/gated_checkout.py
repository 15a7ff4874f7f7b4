"""A copied checkout with a small text and short runs.

The runs pause at gates (gate.py), so that a test can stop them.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fixtures.checkout import Checkout
from polling import poll_often

from formerlab.files import sha256
from formerlab.plan import source_hashes
from formerlab.plan.locate import read_plan

TINY = """
studies: [tokenformer, denseformer, decay]
seeds: [0, 1]
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
COMPARED_FILES = ("weights.safetensors", "train.csv", "eval.csv", "test.csv")
GATE = 5
"""The step after which a run pauses."""
MAX_JOBS = 4
"""Maximum number of Slurm jobs that one run may need in these tests."""
STUCK_AFTER_S = 90
"""After this time in seconds without a running job, the DAG counts as stuck. The executor polls jobs every 2 s."""


class GatedCheckout(Checkout):
    """A checkout with prepared data and with runs that pause at gates."""

    def __init__(self, root, extra_config=""):
        super().__init__(root)
        paragraphs = [" ".join(f"w{i * j % 97}" for j in range(60)) for i in range(400)]
        (root / "words.txt").write_text("\n\n".join(paragraphs))
        (root / "tiny.yaml").write_text(TINY + extra_config)
        self.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: tiny.yaml")
        self.edit("slurm/paper.yaml", "scale: paper", "scale: smoke")
        shutil.copy(Path(__file__).with_name("gate.py"), root / "src/gate.py")
        hooked_loop = f"        import gate\n\n{LOOP}            gate.pass_through(run.id, state, hooks)\n"
        self.edit("src/formerlab/training/loop.py", LOOP, hooked_loop)
        poll_often(self)
        result = self.snakemake("--cores", "1", "data_only")
        assert result.returncode == 0, result.stderr
        (path,) = (root / ".formerlab/plans").iterdir()
        self.plan_path, self.plan = path, read_plan(path)
        self.runs = list(self.plan["train"])
        self.results = root / self.plan["results"]
        self.process = None

    def gate(self, run, **settings):
        path = self.root / "gates" / f"{run}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".reached").unlink(missing_ok=True)
        path.write_text(json.dumps({"step": GATE} | settings))

    def reached(self, run):
        """Return variables and arguments of the process that reached the gate since `gate` was called, or None.

        The variables are SLURM_JOB_ID and CUDA_VISIBLE_DEVICES.
        """
        path = self.root / "gates" / f"{run}.reached"
        return json.loads(path.read_text()) if path.exists() else None

    def start(self, slurm, runs, *arguments):
        """Start Snakemake in the background; it trains the runs as Slurm jobs."""
        self.slurm, self.submitted = slurm, False
        targets = [f"{self.plan['results']}/{run}/run.json" for run in runs]
        short_waits = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5")
        self.log = self.root / "snakemake.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", *targets, "--profile", "slurm", *short_waits, *arguments],
                cwd=self.root,
                env=self.environment | slurm.variables(),
                stdout=log,
                stderr=log,
            )

    def job_at_gate(self, run):
        """Wait until a run is at its gate, and return the id of its Slurm job."""

        def arrived():
            assert self.process.poll() is None, self.diagnostics()
            return self.reached(run)

        return self.wait_for(arrived)["SLURM_JOB_ID"]

    def wait_for_end(self, status=0):
        """Wait until Snakemake ends, and assert its exit status."""
        self.wait_for(lambda: self.process.poll() is not None)
        assert self.process.returncode == status, self.diagnostics()

    def wait_for(self, condition, seconds=600):
        """Wait until `condition()` returns a true value, and return this value. Fail if the DAG is stuck."""
        began = last_active = time.monotonic()
        while not (result := condition()):
            now = time.monotonic()
            states = self.slurm.run("squeue", "--noheader", "--format=%T").split()
            self.submitted |= bool(states)  # Snakemake may take minutes to submit the first job on a busy machine
            if not self.submitted or {"RUNNING", "COMPLETING"} & set(states):
                last_active = now
            assert now - began < seconds, f"the condition is false after {seconds} s\n{self.diagnostics()}"
            assert now - last_active < STUCK_AFTER_S, f"no job has run for {STUCK_AFTER_S} s\n{self.diagnostics()}"
            for logs in (self.root / "logs/slurm/rule_train").glob("*"):
                assert len(list(logs.iterdir())) <= MAX_JOBS, f"{logs.name}: too many jobs\n{self.diagnostics()}"
            time.sleep(0.5)
        return result

    def diagnostics(self):
        """Return the last lines of the logs of jobs, stages and Snakemake, and the output of squeue and sinfo."""
        logs = sorted((self.root / "logs").rglob("*.log"), key=lambda path: path.stat().st_mtime)
        log_ends = [f"--- {path.relative_to(self.root)}\n{last_lines(path, 12)}" for path in logs]
        return "\n".join([*log_ends, f"--- {self.log.name}\n{last_lines(self.log, 40)}", self.slurm.queue_and_nodes()])

    def finish_and_compare(self, *runs):
        """Wait until Snakemake ends, and compare every run with an uninterrupted run."""
        self.wait_for_end()
        for run in runs:
            assert self.file_hashes(self.results / run) == self.uninterrupted_hashes(run)
            assert f"last.pt after step {GATE}" in (self.root / f"logs/smoke/train/{run}.log").read_text()

    def slurm_logs(self, run):
        """Return the Slurm logs of the jobs of a run, oldest first."""
        folder = self.root / "logs/slurm/rule_train" / run.replace("/", "_")
        return [path.read_text() for path in sorted(folder.glob("*.log"), key=lambda path: int(path.stem))]

    def uninterrupted_hashes(self, run):
        """Train the run without interruption, and return the hashes of its files."""
        results = self.root / "alone"
        path = self.root / "alone.json"
        path.write_text(json.dumps(self.plan | {"results": str(results), "sources": source_hashes.AT_START}))
        command = [sys.executable, "-m", "formerlab", "train", run, "--plan", str(path)]
        environment = self.environment | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        result = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return self.file_hashes(results / run)

    @staticmethod
    def file_hashes(folder):
        return {name: sha256(folder / name) for name in COMPARED_FILES}


def last_lines(path, count):
    return "\n".join(path.read_text().splitlines()[-count:])


def history(slurm, checkout, run, *fields):
    """Return accounting fields of a run's Slurm jobs, oldest first.

    The names of the jobs' log files contain their ids.
    """
    folder = checkout.root / "logs/slurm/rule_train" / run.replace("/", "_")
    jobs = {path.stem for path in folder.glob("*.log")}
    rows = [row[1:] for row in slurm.accounts("JobID", *fields) if row[0] in jobs]
    # sacct prints "CANCELLED by 0"; keep the first word
    return [tuple(cell.partition(" ")[0] for cell in row) for row in rows]
