"""The wheel as a user has it: installed into an environment of its own, tried from an empty folder."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

PYTHON = """
import importlib.metadata, sys
import formerlab, formerlab_project
assert formerlab.__file__.startswith(sys.prefix) and formerlab_project.__file__.startswith(sys.prefix)
about = importlib.metadata.metadata("formerlab")
print(*sorted(about.get_all("Provides-Extra")))
"""


def run(*words, **options):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the folder of the programs of an environment with the wheel, and with the packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv/bin/python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(*pip, "--python", python, "install", "--no-deps", *folder.glob("*.whl"))
    others = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
    (site / "packages.pth").write_text("\n".join(others) + "\n")
    return python.parent


def test_from_an_empty_folder_a_project_begins_whose_jobs_snakemake_plans(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "FORMERLAB_PLAN")}
    here = {"cwd": tmp_path, "env": environment | {"OMP_NUM_THREADS": "1"}}
    assert {"pipeline", "prune", "zeroshot", "vision", "released"} <= set(
        run(installed / "python", "-c", PYTHON, **here).split()
    )
    run(installed / "formerlab", "init", "mine", **here)
    here["cwd"] = tmp_path / "mine"
    words = ("-n", "--cores", "1", "--config", "scale=smoke", "studies=[transformer]")
    said = run(installed / "python", "-m", "snakemake", *words, **here)
    assert {"train", "draw"} <= set(said.split())
