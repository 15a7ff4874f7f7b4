#!/usr/bin/env python3
"""Run one study of a scale, and export the metrics of each run when it finishes.

Runs train in the order of the scale's key `only`, parents first.

    scripts/evidence.py STUDY [--runs PATTERN ...] [--missing | --committed] [--workers 2] [--to CHECKOUT] [--commit]
                        [--scale NAME] [--overlay FILE] [--set KEY=VALUE] [--plan FILE]

A repeated command skips finished work and resumes stopped runs. CHECKOUT is a checkout of the repository (default: the
working directory). --committed selects the runs whose metrics are in results/cached of CHECKOUT, and --missing selects
all other runs. Ancestors of selected runs are always included. Each worker trains one run at a time, after its parent,
and then runs its measurements. After each run the script exports the metrics of all complete runs to results/cached of
CHECKOUT; --commit also commits them there. Weights of the runs that the scale lists as `given` come from
results/weights/*-<study>-weights.zip. All processes run at nice 19. Timings need an idle machine: run them last, with
separate commands (python -m formerlab speed STUDY).
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

from formerlab.commands.context import add_configuration, find_plan, plan_one_study
from formerlab.errors import UserError, near_misses
from formerlab.plan.locate import PLAN_VARIABLE, read_plan
from formerlab.plan.staleness import Staleness
from formerlab.results.read import Results
from formerlab.results.stages import ALONE, MEASURED


class StudyQueue:
    """The remaining jobs of a study, shared by the workers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.study, self.patterns = arguments.study, arguments.runs
        self.checkout, self.commit = arguments.to, arguments.commit
        self.missing, self.committed = arguments.missing, arguments.committed
        path = find_plan(arguments)
        self.plan = read_plan(path)
        self.scale = self.plan["scale"]
        if self.study not in self.plan["studies"]:
            raise UserError(f"no study {self.study!r}; name one of {', '.join(self.plan['studies'])}")
        trained = [job["run"] for job in self.plan["train"].values() if job["study"] == self.study]
        for pattern in self.patterns:
            if not any(fnmatch(run, pattern) for run in trained):
                problem = f"--runs: {pattern!r} matches no run that {self.study} trains at scale {self.scale}"
                raise UserError(f"{problem}{near_misses(pattern, trained)}")
        self.results = Path(self.plan["results"])
        self.environment = os.environ | {PLAN_VARIABLE: str(path), "OMP_NUM_THREADS": str(self.plan["threads"])}
        self.changed = threading.Condition()
        self.running: set[str] = set()
        self.failed: set[str] = set()

    def runs(self) -> dict[str, Any]:
        """Return the requested training jobs and their ancestors.

        They are in the order of the scale's key `only`, parents first.
        """
        jobs = {name: job for name, job in self.plan["train"].items() if job["study"] == self.study}
        selected = {
            name for name, job in jobs.items() if any(fnmatch(job["run"], pattern) for pattern in self.patterns)
        }
        cached = self.checkout / "results" / "cached" / self.scale
        if self.missing or self.committed:
            exported = {record["id"] for record in Results(cached).records()} if cached.is_dir() else set()
            selected = selected - exported if self.missing else selected & exported
        for name in list(selected):
            while name := jobs[name]["init"]:
                selected.add(name)
        return {name: job for name, job in jobs.items() if name in selected}

    def prepare(self) -> None:
        """Unpack missing weights of the runs that the scale lists as `given`, and prepare the data."""
        given = {name for name, job in self.runs().items() if job["given"]}
        given = {name for name in given if not (self.results / name / "run.json").exists()}
        for path in sorted(Path("results", "weights").glob(f"*-{self.study}-weights.zip")):
            with zipfile.ZipFile(path) as archive:
                files = [name for name in archive.namelist() if name.rpartition("/")[0] in given]
                files.sort(key=lambda name: name.endswith("run.json"))  # run.json last: it marks complete weights
                archive.extractall(self.results, files)
        staleness = Staleness(self.plan)
        data = {job["data"] for job in self.runs().values()}
        data |= {owner for name in data if (owner := self.plan["data"][name]["tokenizer"])}
        for name in sorted(data, key=lambda name: bool(self.plan["data"][name]["tokenizer"])):  # tokenizer owners first
            if staleness.check("data", name).current:
                continue
            if line := self.plan["data"][name]["data_problem"]:
                raise UserError(line)
            if not self.call("data", name):
                raise UserError(f"data set {name} cannot be prepared")

    def call(self, stage: str, name: str) -> bool:
        """Run a stage in a separate process and return whether it succeeded."""
        command = [sys.executable, "-m", "formerlab", stage, name]
        log = Path("logs", self.scale, stage, f"{name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:
            result = subprocess.run(command, env=self.environment, stdout=file, stderr=file)
        print(f"{stage} {name}: {'done' if result.returncode == 0 else f'failed, see {log}'}", flush=True)
        return result.returncode == 0

    def start_next_run(self) -> tuple[str, list[str]] | None:
        """Mark the next run that can start as running, and return it with its remaining stages.

        Return None if no run remains. Wait while all remaining runs depend on runs that are in progress. Runs whose
        parent failed are marked as failed.
        """
        with self.changed:
            while True:
                staleness, waiting = Staleness(self.plan), False
                for name, job in self.runs().items():
                    if name in self.running or name in self.failed:
                        continue
                    stages = [stage for stage in ("train", *MEASURED) if name in self.plan[stage]]
                    stages = [stage for stage in stages if stage not in ALONE]
                    remaining = [stage for stage in stages if not staleness.check(stage, name).current]
                    if not remaining:
                        continue
                    if not job["init"] or staleness.check("train", job["init"]).current:
                        self.running.add(name)
                        return name, remaining
                    if job["init"] in self.failed:
                        self.failed.add(name)
                    else:
                        waiting = True
                if not waiting or not self.running:
                    return None
                self.changed.wait()

    def work(self) -> None:
        """Run the remaining runs and their measurements."""
        while (run := self.start_next_run()) is not None:
            name, stages = run
            done = all(self.call(stage, name) for stage in stages)
            with self.changed:
                self.running.discard(name)
                if not done:
                    self.failed.add(name)
                else:
                    self.export(name)
                self.changed.notify_all()

    def export(self, name: str) -> None:
        """Export the metrics of all complete runs; with --commit, also commit them."""
        cached = self.checkout / "results" / "cached"
        command = [sys.executable, "-m", "formerlab", "export", "--to", str(cached)]
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if result.returncode:
            print(result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "export failed", flush=True)
        elif self.commit:
            folder = str((cached / self.scale / self.study).resolve())
            git = ["git", "-C", str(self.checkout)]
            subprocess.run([*git, "add", "--all", "--", folder])
            if subprocess.run([*git, "diff", "--cached", "--quiet", "--", folder]).returncode:
                message = f"Rows of {self.scale}: {name.rpartition('/')[0]}"
                subprocess.run([*git, "commit", "--quiet", "--message", message, "--", folder])


def main() -> int:
    """Run the study; return 1 after a user error or a failed job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--runs", nargs="+", metavar="PATTERN", default=["*"], help="only these runs, such as 'long-*'")
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--missing", action="store_true", help="select runs without exported metrics in CHECKOUT")
    selection.add_argument("--committed", action="store_true", help="select runs with exported metrics in CHECKOUT")
    add_configuration(parser, scale="overnight")
    parser.add_argument("--workers", type=int, default=2, help="number of runs at a time; default: 2")
    text = "checkout whose results/cached gets the exported metrics; default: working directory"
    parser.add_argument("--to", type=Path, default=Path(), metavar="CHECKOUT", help=text)
    parser.add_argument("--commit", action="store_true", help="commit the exported metrics in CHECKOUT")
    arguments = parser.parse_args()
    os.nice(19)
    plan_one_study(arguments, arguments.study)
    try:
        queue = StudyQueue(arguments)
        queue.prepare()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    workers = [threading.Thread(target=queue.work) for _ in range(arguments.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 1 if queue.failed else 0


if __name__ == "__main__":
    sys.exit(main())
