"""`formerlab figures` reproduces the committed figures without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from formerlab.report.write import same_rows
from formerlab.results.read import has_runs

ROOT = Path(__file__).resolve().parents[2]
BLOCK = """
import sys

class NoTorch:
    @staticmethod
    def find_spec(name, *_):
        if name == "torch":
            raise ModuleNotFoundError("import of torch halted")

sys.meta_path.insert(0, NoTorch)
"""
"""Every new Python process runs sitecustomize.py, including pool workers.

A finder blocks the import, because a None entry in sys.modules would confuse scipy, which looks for torch there.
"""


@pytest.mark.slow
def test_committed_figures_and_verdicts_are_reproduced_without_torch(tmp_path):
    project, blocked = tmp_path / "project", tmp_path / "blocked"
    project.mkdir()
    for name in ("results", "workflow", "config.yaml"):
        (project / name).symlink_to(ROOT / name)
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(BLOCK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(blocked), str(ROOT / "src")])}
    python = [sys.executable, "-c", "import torch"]
    assert b"import of torch halted" in subprocess.run(python, env=environment, capture_output=True).stderr
    command = [sys.executable, "-m", "formerlab", "figures"]
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

    rendered = project / "figures/cached"
    for scale in (path.name for path in (ROOT / "results/cached").glob("*/") if has_runs(path)):
        assert {"claims.csv", "runs.csv"} <= {path.name for path in (rendered / scale).glob("*.csv")}
    committed = {path.relative_to(ROOT / "figures/cached") for path in (ROOT / "figures/cached").rglob("*.csv")}
    assert len(committed) > 50
    rows = {path: pd.read_csv(rendered / path) for path in committed}
    assert not [str(path) for path in committed if not same_rows(ROOT / "figures/cached" / path, rows[path])]
