"""The queue for one machine without Snakemake: tests, benchmarks, then every stage that needs a model, in time."""

import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch
from pruning import row_loop

from formerlab.plan.build import build_plan
from formerlab.plan.show import shell
from formerlab.results.stages import STAGES

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/gpu_queue.sh"

PYTHON = """#!/bin/sh
# Python in this test: it notes what it is asked, and every job leaves a row, training weights too.
echo "$*" >>calls
case "$*" in
*--shell*) cat plan ;;
*-c*) echo cpu ;;
*benchmarks/*) echo "  met: time of ours / theirs 1.000 [0.900, 1.100] <= 1.03" ;;
*pytest*) echo "3 skipped" ;;
*"formerlab train"*) sleep "${TAKES:-0}"; mkdir -p "results/live/smoke/$4"; echo row >"results/live/smoke/$4/train.csv"
    echo weights >"results/live/smoke/$4/weights.safetensors" ;;
esac
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
    """Return a function that runs the queue in an empty folder for so many seconds."""
    (tmp_path / "plan").write_text(PLAN)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)

    def run(seconds, **environment):
        words = ["bash", str(SCRIPT), str(seconds), "out", "smoke"]
        given = os.environ | {"PYTHON": str(tmp_path / "python"), "MARGIN_S": "0"} | environment
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=given)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "out/log").read_text()

    return run


def test_every_stage_of_a_plan_is_queued_but_those_that_need_no_model():
    plan = shell(build_plan(ROOT, {"scale": "smoke"}), Path("plan.json"))
    said = set(re.findall(r"^python -m formerlab (\S+)", plan, re.MULTILINE))
    left = re.search(r"formerlab \(([a-z|]+)\)\( ", SCRIPT.read_text())
    assert left is not None
    assert said | STAGES.keys() == set(left[1].split("|")) | (STAGES.keys() - {"data", "exact"}), "scripts/gpu_queue.sh"


def test_kernels_are_tested_where_nothing_checks_types(tmp_path):
    (tmp_path / "beartype.py").write_text("raise ImportError")
    words = re.search(r'"\$python" (-m pytest .*) >"\$out/tests.log"', SCRIPT.read_text())
    given = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT / "src")))}
    subprocess.run([sys.executable, *words[1].split()], cwd=ROOT, env=given, check=True)


def test_kernels_are_tested_then_benchmarks_run_then_runs_by_worth(queue, tmp_path):
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
    order = [calls.index(part) for part in ("test_on_a_gpu.py", "benchmarks/pattention.py", "formerlab speed")]
    assert order == sorted(order)
    table = (tmp_path / "out/benchmarks.md").read_text().splitlines()
    assert table[:2] == ["| benchmark | verdict |", "|---|---|"]
    assert len(table) == 5
    assert all("|   met: time of ours / theirs" in line for line in table[2:])
    assert "10 jobs missing, budget 60s" in log
    with tarfile.open(tmp_path / "out/rows.tar.gz") as rows:
        assert "results/live/smoke/depth/plain/seed0/train.csv" in rows.getnames()
    with tarfile.open(tmp_path / "out/resume-1.tar") as weights:
        assert len(weights.getnames()) == 4


def test_the_papers_way_runs_in_the_precision_of_a_gpu():
    q, k, v = torch.randn(3, 2, 12, 8, dtype=torch.bfloat16)
    assert row_loop(q, k, v, 4, 0.2).dtype == torch.bfloat16


def test_it_stops_in_time_and_the_next_call_measures_nothing_twice(queue, tmp_path):
    began = time.monotonic()
    log = queue(60, MARGIN_S="59", TAKES="0.5")  # a second for jobs that take half of one each
    assert time.monotonic() - began < 30
    assert "out of time before" in log
    assert (tmp_path / "out/rows.tar.gz").exists() == ("train depth/plain/seed0 ended" in log)
    limit = re.search(r"train \S+ --time-limit (\d+) --margin 10", (tmp_path / "calls").read_text())
    assert limit is None or int(limit[1]) <= 1
    queue(60)
    assert (tmp_path / "calls").read_text().count("test_on_a_gpu.py") == 1


def test_what_was_carried_along_is_unpacked(queue, tmp_path):
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
