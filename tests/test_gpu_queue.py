"""The queue for one machine without Snakemake runs every stage that needs a model."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDS_NO_MODEL = {"data", "draw", "exact", "claims", "track", "runs"}


def test_every_stage_of_a_plan_is_queued():
    plan = subprocess.run(
        [sys.executable, "-m", "formerlab", "plan", "--scale", "smoke", "--shell"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    stages = set(re.findall(r"^python -m formerlab (\S+)", plan, re.MULTILINE))
    queued = re.search(r"formerlab \(([a-z|]+)\) '", (ROOT / "scripts/gpu_queue.sh").read_text())
    assert queued is not None
    assert stages - NEEDS_NO_MODEL == set(queued[1].split("|")), "scripts/gpu_queue.sh"


def test_without_time_nothing_is_begun(tmp_path):
    words = ["bash", "scripts/gpu_queue.sh", "0", str(tmp_path), "smoke"]
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text()
    assert re.search(r"scale smoke, \d+ jobs missing, budget 0s", log)
    assert "out of time before" in log
