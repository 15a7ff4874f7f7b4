#!/usr/bin/env python3
"""Run one study of a scale in the order in which its runs are wanted, and bring out what is finished as it ends.

    scripts/evidence.py STUDY [--runs PATTERN ...] [--missing] [--workers 2] [--to CHECKOUT] [--commit]
                        [--scale NAME] [--set KEY=VALUE] [--plan FILE]

What is finished is not done again, and a run that was stopped goes on, so the same command resumes; with --missing it
goes on from the rows alone, on a machine that has nothing else. Every worker trains one run at a time, followed by the
run's measurements; a run waits for its parent. After each run the rows of all complete runs are exported to
results/cached below CHECKOUT (this one, unless named: another one keeps the tree that the runs come from clean), where
other runs keep theirs, and with --commit committed there. Weights that the scale calls given come from
results/weights/*-<study>-weights.zip. All of it runs at the lowest priority; times are measured by
commands of their own (python -m formerlab speed STUDY), last, on a machine that must be idle.
"""

import argparse
import os
import subprocess
import sys
import threading
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_configuration, find_plan
from formerlab.errors import UserError, near_misses
from formerlab.plan.locate import PLAN_VARIABLE, read_plan
from formerlab.plan.staleness import Staleness
from formerlab.results.read import Results
from formerlab.results.stages import ALONE, MEASURED


class Evidence:
    """The jobs of a study that are left, shared by the workers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.study, self.patterns = arguments.study, arguments.runs
        self.to, self.commit, self.missing = arguments.to, arguments.commit, arguments.missing
        path = find_plan(arguments)
        self.plan = read_plan(path)
        self.scale = self.plan["scale"]
        if self.study not in self.plan["studies"]:
            raise UserError(f"no study {self.study!r}; name one of {', '.join(self.plan['studies'])}")
        trained = [job["run"] for job in self.plan["train"].values() if job["study"] == self.study]
        for pattern in self.patterns:
            if not any(fnmatch(run, pattern) for run in trained):
                what = f"--runs: {pattern!r} matches no run that {self.study} trains at scale {self.scale}"
                raise UserError(f"{what}{near_misses(pattern, trained)}")
        self.results = Path(self.plan["results"])
        self.environment = os.environ | {PLAN_VARIABLE: str(path), "OMP_NUM_THREADS": str(self.plan["threads"])}
        self.changed = threading.Condition()
        self.running: set[str] = set()
        self.failed: set[str] = set()

    def runs(self) -> dict[str, Any]:
        """Return the training jobs that are asked for, and what they start from, the most wanted first."""
        jobs = {name: job for name, job in self.plan["train"].items() if job["study"] == self.study}
        wanted = {name for name, job in jobs.items() if any(fnmatch(job["run"], pattern) for pattern in self.patterns)}
        cached = self.to / "results" / "cached" / self.scale
        if self.missing and cached.is_dir():  # where the rows of this call will go
            wanted -= {record["id"] for record in Results(cached).records()}
        for name in list(wanted):
            while name := jobs[name]["init"]:
                wanted.add(name)
        return {name: job for name, job in jobs.items() if name in wanted}

    def prepare(self) -> None:
        """Unpack the weights that are given and not there, and prepare the data."""
        given = {name for name, job in self.runs().items() if job["given"]}
        given = {name for name in given if not (self.results / name / "run.json").exists()}
        for path in sorted(Path("results", "weights").glob(f"*-{self.study}-weights.zip")):
            with zipfile.ZipFile(path) as archive:
                files = [name for name in archive.namelist() if name.rpartition("/")[0] in given]
                files.sort(key=lambda name: name.endswith("run.json"))  # last: it says that the weights are there
                archive.extractall(self.results, files)
        staleness = Staleness(self.plan)
        read = {job["data"] for job in self.runs().values()}
        read |= {lender for name in read if (lender := self.plan["data"][name]["tokenizer"])}
        for name in sorted(read, key=lambda name: bool(self.plan["data"][name]["tokenizer"])):  # lenders first
            if staleness.check("data", name).current:
                continue
            if line := self.plan["data"][name]["data_problem"]:
                raise UserError(line)
            if not self.call("data", name):
                raise UserError(f"data set {name} cannot be prepared")

    def call(self, stage: str, name: str) -> bool:
        """Carry out a stage in a process of its own; say whether it ended well."""
        words = [sys.executable, "-m", "formerlab", stage, name]
        log = Path("logs", self.scale, stage, f"{name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            ended = subprocess.run(words, env=self.environment, stdout=file, stderr=file)
        print(f"{stage} {name}: {'done' if ended.returncode == 0 else f'failed, see {log}'}", flush=True)
        return ended.returncode == 0

    def next(self) -> tuple[str, list[tuple[str, str]]] | None:
        """Return the most wanted run that is neither done nor under way, with its stages that are left.

        Waits where all that is left hangs on runs under way; None where nothing is left.
        """
        with self.changed:
            while True:
                staleness, waiting = Staleness(self.plan), False
                for name, job in self.runs().items():
                    if name in self.running or name in self.failed:
                        continue
                    stages = [
                        stage for stage in ("train", *MEASURED) if name in self.plan[stage] and stage not in ALONE
                    ]
                    left = [(stage, name) for stage in stages if not staleness.check(stage, name).current]
                    if not left:
                        continue
                    if not job["init"] or staleness.check("train", job["init"]).current:
                        self.running.add(name)
                        return name, left
                    if job["init"] in self.failed:
                        self.failed.add(name)
                    else:
                        waiting = True
                if not waiting or not self.running:
                    return None
                self.changed.wait()

    def work(self) -> None:
        """Do what is left, until nothing is."""
        while (found := self.next()) is not None:
            name, stages = found
            done = all(self.call(stage, name) for stage, _ in stages)
            with self.changed:
                self.running.discard(name)
                if not done:
                    self.failed.add(name)
                else:
                    self.bring_out(name)
                self.changed.notify_all()

    def bring_out(self, name: str) -> None:
        """Export the rows, and commit them where asked to."""
        cached = self.to / "results" / "cached"
        words = [sys.executable, "-m", "formerlab", "export", "--to", str(cached)]
        exported = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if exported.returncode:
            print(exported.stderr.strip().splitlines()[-1] if exported.stderr.strip() else "export failed", flush=True)
        elif self.commit:
            folder = str((cached / self.scale / self.study).resolve())
            git = ["git", "-C", str(self.to)]
            subprocess.run([*git, "add", "--all", "--", folder])
            if subprocess.run([*git, "diff", "--cached", "--quiet", "--", folder]).returncode:
                message = f"Rows of {self.scale}: {name.rpartition('/')[0]}"
                subprocess.run([*git, "commit", "--quiet", "--message", message, "--", folder])


def main() -> int:
    """Run the study; the status is 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--runs", nargs="+", metavar="PATTERN", default=["*"], help="these alone, as in 'long-*'")
    parser.add_argument("--missing", action="store_true", help="leave out runs that have rows in CHECKOUT")
    add_configuration(parser, scale="overnight")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core; default: 2")
    parser.add_argument("--to", type=Path, default=Path(), help="checkout whose results/cached takes the rows")
    parser.add_argument("--commit", action="store_true", help="commit the rows there as they come")
    arguments = parser.parse_args()
    os.nice(19)
    try:
        evidence = Evidence(arguments)
        evidence.prepare()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    workers = [threading.Thread(target=evidence.work) for _ in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1 if evidence.failed else 0


if __name__ == "__main__":
    sys.exit(main())
