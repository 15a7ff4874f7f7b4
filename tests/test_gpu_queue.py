"""scripts/gpu_queue.sh runs tests, the benchmark and every stage that runs a model, in limited time."""

import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import gpu
import gpu_steps
import pytest
import torch
from pruning import row_loop

from formerlab.plan.build import build_plan
from formerlab.plan.show import shell
from formerlab.results.stages import STAGES

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/gpu_queue.sh"

PYTHON = """#!/bin/sh
# fake python: logs its arguments; every training job writes a row file and weights
echo "$*" >>calls
case "$*" in
*--shell*) cat plan ;;
*-c*) echo "$MISSING_PACKAGES" ;;
*benchmarks/gpu.py*) echo "pruning done" | tee out/gpu.txt ;;
*"formerlab train"*) sleep "${JOB_SECONDS:-0}"; mkdir -p "results/live/smoke/$4"
    echo row >"results/live/smoke/$4/train.csv"
    echo weights >"results/live/smoke/$4/weights.safetensors" ;;
esac
"""
ITEM = """
import subprocess, sys, time
item = sys.argv[2]
print("1 ms", flush=True)
if item == "slow":
    subprocess.run(["sleep", "600"])
if item == "broken":
    1 / 0
"""
PLAN = """set -e
export FORMERLAB_PLAN='a folder/plan.json'
export OMP_NUM_THREADS=1
python -m formerlab data text
python -m formerlab speed depth
python -m formerlab train depth/plain/seed0
python -m formerlab train depth/plain/seed1
python -m formerlab train tokens/small/seed0
python -m formerlab train tokens/grown/seed0
python -m formerlab zeroshot tokens/trained/seed0
python -m formerlab prune depth/plain/seed0
python -m formerlab prune tokens/grown/seed0
python -m formerlab claims --out figures
"""


@pytest.fixture
def queue(tmp_path):
    """Return a function that runs the queue in an empty folder for the given number of seconds."""
    (tmp_path / "plan").write_text(PLAN)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)

    def run(seconds, **environment):
        words = ["bash", str(SCRIPT), str(seconds), "out", "smoke"]
        variables = os.environ | {"PYTHON": str(tmp_path / "python"), "MARGIN_S": "0"} | environment
        result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=variables)
        assert result.returncode == 0, result.stderr
        return (tmp_path / "out/log").read_text()

    return run


def test_every_stage_that_runs_a_model_is_queued():
    plan = shell(build_plan(ROOT, {"scale": "smoke"}), Path("plan.json"))
    planned_stages = set(re.findall(r"^python -m formerlab (\S+)", plan, re.MULTILINE))
    stage_pattern = re.search(r"formerlab \(([a-z|]+)\)\( ", SCRIPT.read_text())
    assert stage_pattern is not None
    stages_in_the_script = set(stage_pattern[1].split("|"))
    assert planned_stages | STAGES.keys() == stages_in_the_script | (STAGES.keys() - {"data", "exact"})


def test_the_kernel_tests_run_without_type_checks(tmp_path):
    (tmp_path / "beartype.py").write_text("raise ImportError")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "src")))}
    words = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--only", "tests", "--out", str(tmp_path)]
    subprocess.run([*words, "--seconds", "300"], cwd=ROOT, env=environment, check=True)
    assert " skipped" in (tmp_path / "tests.log").read_text() or torch.cuda.is_available()
    assert re.search(r"0 failed, 0 error, [1-9]\d* skipped; ended", (tmp_path / "gpu.txt").read_text())


def test_a_slow_item_is_stopped_and_the_remaining_time_is_used(monkeypatch, tmp_path):
    """Three items: one prints a line, one sleeps in a child process, and one raises ZeroDivisionError."""
    script = tmp_path / "item.py"
    script.write_text(ITEM)
    monkeypatch.setattr(gpu, "__file__", str(script))
    printed_lines = []
    with open(tmp_path / "gpu.log", "a") as errors:
        began = time.monotonic()
        for item, limit in (("quick", 60), ("slow", 3), ("broken", 60)):
            gpu.run_item(item, limit, tmp_path, printed_lines.append, errors)
        assert time.monotonic() - began < 60
    assert [re.sub(r"\d+ of ", "n of ", line) for line in printed_lines] == [
        "quick       1 ms",
        "quick       done after n of 60 s",
        "slow        1 ms",
        "slow        out of time after n of 3 s",
        "broken      1 ms",
        "broken      failed with status 1, see gpu.log after n of 60 s",
    ]
    assert "ZeroDivisionError" in (tmp_path / "gpu.log").read_text()


def test_the_queue_measures_speed_first_and_trains_by_priority(queue, tmp_path):
    log = queue(60)
    calls = (tmp_path / "calls").read_text()
    jobs = re.findall(r"^-m formerlab (\S+) (\S+)", calls, re.MULTILINE)
    assert [f"{stage} {name}" for stage, name in jobs if stage != "plan"] == [
        "speed depth",
        "zeroshot tokens/trained/seed0",
        "train depth/plain/seed0",
        "prune depth/plain/seed0",
        "train tokens/small/seed0",
        "train tokens/grown/seed0",
        "prune tokens/grown/seed0",
        "train depth/plain/seed1",
    ]
    order = [calls.index(part) for part in ("benchmarks/gpu.py --seconds 60", "formerlab plan", "formerlab speed")]
    assert order == sorted(order)
    assert "10 jobs missing, budget 60s" in log
    with tarfile.open(tmp_path / "out/rows.tar.gz") as rows:
        assert "results/live/smoke/depth/plain/seed0/train.csv" in rows.getnames()
    with tarfile.open(tmp_path / "out/resume-1.tar") as weights:
        assert len(weights.getnames()) == 4


def test_the_reference_implementation_of_decay_supports_bfloat16():
    q, k, v = torch.randn(3, 2, 12, 8, dtype=torch.bfloat16)
    assert row_loop(q, k, v, 4, 0.2).dtype == torch.bfloat16


def test_the_queue_stops_in_time_and_the_next_call_continues(queue, tmp_path):
    began = time.monotonic()
    log = queue(60, MARGIN_S="59", JOB_SECONDS="0.5")  # the time budget is one second, and a job takes half a second
    assert time.monotonic() - began < 30
    assert "out of time before" in log
    assert (tmp_path / "out/rows.tar.gz").exists() == ("train depth/plain/seed0 ended" in log)
    limit = re.search(r"train \S+ --time-limit (\d+) --margin 10", (tmp_path / "calls").read_text())
    assert limit is None or int(limit[1]) <= 1
    queue(60)
    assert (tmp_path / "calls").read_text().count("benchmarks/gpu.py") == 1


def test_missing_packages_are_listed_before_the_first_job(tmp_path, queue):
    with pytest.raises(AssertionError):
        queue(60, MISSING_PACKAGES="pydantic babel")
    assert "missing packages: pydantic babel; put their wheels into carried" in (tmp_path / "out/log").read_text()
    assert "benchmarks/gpu.py" not in (tmp_path / "calls").read_text()


def test_carried_files_are_unpacked(queue, tmp_path):
    carried, row = tmp_path / "carried", tmp_path / "results/live/smoke/data/text/manifest.json"
    carried.mkdir()
    row.parent.mkdir(parents=True)
    row.write_text("{}")
    with tarfile.open(carried / "data.tar.gz", "w:gz") as packed:
        packed.add(row, row.relative_to(tmp_path))
    row.unlink()
    (carried / "some-1.0-py3-none-any.whl").touch()
    assert "unpacked carried: 1 wheels" in queue(60)
    assert row.read_text() == "{}"
    installed = "-m pip install --quiet --no-index --no-deps --upgrade --target .carried carried/some-1.0"
    assert installed in (tmp_path / "calls").read_text()


def test_without_a_gpu_cases_run_one_after_another(monkeypatch, tmp_path):
    running, running_counts = set(), []

    class Process:
        def __init__(self, words, env):
            self.name = words[-1]
            running.add(self.name)
            running_counts.append(len(running))

        def wait(self):
            running.discard(self.name)
            return int(self.name == "b")

    monkeypatch.setattr(gpu_steps.subprocess, "Popen", Process)
    options = SimpleNamespace(out=tmp_path)
    for gpu_is_there, largest in ((False, 1), (True, 3)):
        monkeypatch.setattr(gpu_steps, "GPU", gpu_is_there)
        running_counts.clear()
        assert list(gpu_steps.side_by_side("depth", {"a": {}, "b": {}, "c": {}}, options)) == [
            "b: failed with status 1, see gpu.log"
        ]
        assert max(running_counts) == largest
