"""Planning needs no data, no network and no heavy library except torch, and is deterministic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from formerlab.plan import source_hashes
from formerlab.plan.build import build_plan

ROOT = Path(__file__).parents[2]

PROBE = """
import json, socket, sys
from pathlib import Path

def refuse(*arguments, **options):
    raise OSError("no network")

socket.socket.connect = socket.getaddrinfo = refuse
from formerlab.plan.build import build_plan
plan = build_plan(Path.cwd(), {"scale": sys.argv[1]})
heavy = ("mlflow", "snakemake", "datasets", "lm_eval", "pandas", "matplotlib", "transformers", "scipy", "sklearn")
print(json.dumps({"plan": plan, "heavy": [name for name in heavy if name in sys.modules]}))
"""


@pytest.fixture
def copied(tmp_path):
    """Return a folder with the configuration and the package, without data and results."""
    package = [path for ending in source_hashes.ENDINGS for path in (ROOT / "src").rglob(f"*{ending}")]
    for path in [ROOT / "config.yaml", *(ROOT / "workflow").glob("s*/*.yaml"), *package]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def test_planning_needs_no_data_network_or_heavy_library_except_torch_and_is_deterministic(copied):
    """Compare a plan from another process, in which sets have another order, with a plan from this process."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    environment = os.environ | {"PYTHONHASHSEED": "2" if hash_seed == "1" else "1", "PYTHONPATH": str(copied / "src")}
    command = [sys.executable, "-c", PROBE, "paper"]
    process = subprocess.run(command, cwd=copied, env=environment, capture_output=True, text=True, check=True)
    outcome = json.loads(process.stdout)
    assert outcome["heavy"] == []
    assert json.dumps(outcome["plan"]) == json.dumps(build_plan(copied, {"scale": "paper"}))
