"""Ctrl-C in `make demo`: stages save their work, all processes end, and the last line says that no work is lost.

Make, the demo, shells, stages and signals are real. A fake Snakemake starts the jobs and reports failed jobs as
Snakemake does.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from fixtures.project import Project

from formerlab.files import write_json
from formerlab.plan.build import build_plan
from formerlab.plan.locate import plan_path
from formerlab.results.notes import SAFE, read_note

SNAKEMAKE = """
import pathlib, subprocess, sys
locks = pathlib.Path(".snakemake/locks")
locks.mkdir(parents=True)
(locks / "0.output.lock").touch()
shell = "set -euo pipefail; python {} 2>&1 | tee -i {}.log"
jobs = [subprocess.Popen(shell.format(name, name), shell=True, executable="bash") for name in ("quick.py", "slow.py")]
for job in jobs:
    if job.wait():
        print("RuleException", file=sys.stderr)
"""
QUICK = """
import time
from contextlib import suppress
from pathlib import Path
from formerlab.__main__ import let_signals_interrupt
from formerlab.results.notes import stage_note
let_signals_interrupt()
with suppress(KeyboardInterrupt), stage_note("train", Path("quick")):
    Path("quick/begun").touch()
    time.sleep(1000)
"""
SLOW = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_IGN)
Path("slow").write_text(str(os.getpid()))
time.sleep(1000)
"""
MAKE_VARIABLES = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")
"""Variables that `make test` sets. With them, a nested make prints the folders that it leaves."""


@pytest.fixture
def demo(tmp_path):
    """Start the demo under make in its own process group, as a shell does, and wait until both stages have started."""
    project = Project(tmp_path)
    write_json(plan_path(tmp_path, {}), build_plan(tmp_path, {}))  # planning takes seconds
    project.write("Makefile", f"demo:\n\t@{sys.executable} -m formerlab demo --cores 2\n")
    project.write("snakemake/__init__.py", "")
    for name, text in (("snakemake/__main__.py", SNAKEMAKE), ("quick.py", QUICK), ("slow.py", SLOW)):
        project.write(name, text)
    search_path = [str(tmp_path), *filter(None, sys.path)]
    environment = {key: value for key, value in os.environ.items() if key not in MAKE_VARIABLES}
    environment["PYTHONPATH"] = os.pathsep.join(search_path)
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    with open(tmp_path / "output.txt", "wb") as file:
        make = subprocess.Popen(
            ["make", "demo"],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
            # background commands of a shell script inherit an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    while not ((tmp_path / "quick/begun").exists() and (tmp_path / "slow").exists()):
        assert make.poll() is None, (tmp_path / "output.txt").read_text()
        time.sleep(0.02)
    yield make
    make.kill()


def test_ctrl_c_ends_all_processes_and_prints_that_no_work_is_lost(demo, tmp_path):
    os.killpg(demo.pid, signal.SIGINT)
    assert demo.wait(timeout=60) == -signal.SIGINT
    output = (tmp_path / "output.txt").read_text()
    assert output.splitlines()[-1] == SAFE
    assert not [word for word in ("Traceback", "RuleException", "***") if word in output]
    assert read_note("train", tmp_path / "quick")["state"] == "stopped"
    slow = int((tmp_path / "slow").read_text())
    assert not psutil.pid_exists(slow) or psutil.Process(slow).status() == psutil.STATUS_ZOMBIE
    assert not list((tmp_path / ".snakemake/locks").iterdir())


def test_sigterm_to_the_demo_gives_exit_status_75(demo, tmp_path):
    (process,) = psutil.Process(demo.pid).children()
    process.terminate()
    assert demo.wait(timeout=60) == 2  # make returns this status after any failure
    output = (tmp_path / "output.txt").read_text().splitlines()
    assert output[-2] == SAFE
    assert output[-1].endswith("Error 75")
