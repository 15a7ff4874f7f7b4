"""The installed wheel works in a new environment and an empty folder."""

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


def run(*command, **options):
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the bin folder of a new environment that has the wheel and the packages of the current environment."""
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


def test_init_creates_a_project_that_snakemake_can_plan(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "FORMERLAB_PLAN")}
    options = {"cwd": tmp_path, "env": environment | {"OMP_NUM_THREADS": "1"}}
    assert {"pipeline", "prune", "zeroshot", "vision", "released"} <= set(
        run(installed / "python", "-c", PYTHON, **options).split()
    )
    run(installed / "formerlab", "init", "mine", **options)
    options["cwd"] = tmp_path / "mine"
    arguments = ("-n", "--cores", "1", "--config", "scale=smoke", "studies=[transformer]")
    output = run(installed / "python", "-m", "snakemake", *arguments, **options)
    assert {"train", "draw"} <= set(output.split())
