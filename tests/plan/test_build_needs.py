"""What the plan does without: data, network, heavy libraries, chance."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def probe(root, scale, hash_seed):
    words = [sys.executable, "-c", PROBE, scale]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def copied(tmp_path):
    """Configuration and package alone, in a folder that holds neither data nor results."""
    paths = [*(ROOT / "workflow").glob("s*/*.yaml"), *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.csv")]
    for path in [ROOT / "config.yaml", *paths]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return tmp_path


def test_the_plan_needs_no_data_no_network_and_no_heavy_library_and_is_always_the_same(copied):
    first, second = (probe(copied, "paper", seed) for seed in ("1", "2"))
    assert json.loads(first)["heavy"] == []
    assert first == second
