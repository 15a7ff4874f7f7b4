"""A copied checkout with a small text and small runs, which wait at gates (gate.py) for what a test does to them."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from fixtures.checkout import Checkout
from prompt import ask_often

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
SAME_BITS = ("weights.safetensors", "train.csv", "eval.csv", "test.csv")
GATE = 5
"""The step after which a run waits."""
MOST_JOBS = 4
"""No run needs more, whatever a test does to it."""
SILENCE_S = 90
"""Without a job for so long after the first one the DAG is stuck: it asks for them every 2 s."""


class Laboratory(Checkout):
    """A checkout with prepared data and runs that wait at gates."""

    def __init__(self, root, more=""):
        super().__init__(root)
        paragraphs = [" ".join(f"w{i * j % 97}" for j in range(60)) for i in range(400)]
        (root / "words.txt").write_text("\n\n".join(paragraphs))
        (root / "tiny.yaml").write_text(TINY + more)
        self.edit("config.yaml", "scale: laptop", "scale: smoke\noverlay: tiny.yaml")
        self.edit("slurm/paper.yaml", "scale: paper", "scale: smoke")
        shutil.copy(Path(__file__).with_name("gate.py"), root / "src/gate.py")
        passing = f"        import gate\n\n{LOOP}            gate.pass_through(run.id, state, hooks)\n"
        self.edit("src/formerlab/training/loop.py", LOOP, passing)
        ask_often(self)
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
        self.slurm, self.submitted = slurm, False
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

    def job_at_gate(self, run):
        """Wait for a run at its gate and return its Slurm job."""

        def arrived():
            assert self.process.poll() is None, self.story()
            return self.reached(run)

        return self.wait_for(arrived)["SLURM_JOB_ID"]

    def ends(self, status=0):
        """Wait for the DAG, which is to end with this exit status."""
        self.wait_for(lambda: self.process.poll() is not None)
        assert self.process.returncode == status, self.story()

    def wait_for(self, condition, seconds=600):
        """Wait until the condition returns something true, and return that; not where the DAG plainly is stuck."""
        began = busy = time.monotonic()
        while not (found := condition()):
            now = time.monotonic()
            states = self.slurm.run("squeue", "--noheader", "--format=%T").split()
            self.submitted |= bool(states)  # until then Snakemake starts, for minutes where the machine is busy
            if not self.submitted or {"RUNNING", "COMPLETING"} & set(states):
                busy = now
            assert now - began < seconds, f"waited {seconds} s in vain\n{self.story()}"
            assert now - busy < SILENCE_S, f"no job has run for {SILENCE_S} s\n{self.story()}"
            for logs in (self.root / "logs/slurm/rule_train").glob("*"):
                assert len(list(logs.iterdir())) <= MOST_JOBS, f"{logs.name}: too many jobs\n{self.story()}"
            time.sleep(0.5)
        return found

    def story(self):
        """Return how the logs of jobs, of stages and of the DAG end, and what Slurm shows."""
        logs = sorted((self.root / "logs").rglob("*.log"), key=lambda path: path.stat().st_mtime)
        ends = [f"--- {path.relative_to(self.root)}\n{last_lines(path, 12)}" for path in logs]
        return "\n".join([*ends, f"--- {self.log.name}\n{last_lines(self.log, 40)}", self.slurm.shown()])

    def finish(self, *runs):
        """Wait for the DAG, and compare every run with the same one left alone."""
        self.ends()
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
        path.write_text(json.dumps(self.plan | {"results": str(alone), "sources": source_hashes.AT_START}))
        words = [sys.executable, "-m", "formerlab", "train", run, "--plan", str(path)]
        quiet = self.environment | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
        done = subprocess.run(words, cwd=self.root, env=quiet, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return self.bits(alone / run)

    @staticmethod
    def bits(folder):
        return {name: sha256(folder / name) for name in SAME_BITS}


def last_lines(path, count):
    return "\n".join(path.read_text().splitlines()[-count:])


def history(slurm, laboratory, run, *fields):
    """Return what the accounting says of the jobs of one run, by the logs that Slurm wrote, oldest first."""
    folder = laboratory.root / "logs/slurm/rule_train" / run.replace("/", "_")
    jobs = {path.stem for path in folder.glob("*.log")}
    rows = [row[1:] for row in slurm.accounts("JobID", *fields) if row[0] in jobs]
    return [tuple(cell.partition(" ")[0] for cell in row) for row in rows]  # without "by 0" of CANCELLED
