"""`formerlab figures` reproduces committed figures without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from formerlab.report.write import same_rows

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
def test_the_committed_figures_and_verdicts_of_a_scale_are_reproduced_without_torch(tmp_path):
    """Scale pilot has few figures. tests/figures/test_committed.py compares the rows of all scales, with torch."""
    project, blocked = tmp_path / "project", tmp_path / "blocked"
    (project / "results/cached").mkdir(parents=True)
    for name in ("results/cached/pilot", "workflow", "config.yaml"):
        (project / name).symlink_to(ROOT / name)
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(BLOCK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(blocked), str(ROOT / "src")])}
    python = [sys.executable, "-c", "import torch"]
    assert b"import of torch halted" in subprocess.run(python, env=environment, capture_output=True).stderr
    command = [sys.executable, "-m", "formerlab", "figures"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    rendered, committed = project / "figures/cached/pilot", ROOT / "figures/cached/pilot"
    assert {"claims.csv", "runs.csv"} <= {path.name for path in rendered.glob("*.csv")}
    rows = {path: pd.read_csv(rendered / path.name) for path in committed.glob("*.csv")}
    assert len(rows) >= 2
    assert all(same_rows(path, of_figure) for path, of_figure in rows.items())
    assert {path.name for path in rendered.glob("*.png")} == {path.name for path in committed.glob("*.png")}
