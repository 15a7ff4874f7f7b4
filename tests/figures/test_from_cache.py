"""`formerlab figures` reproduces the committed figures and tables without torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from formerlab.report.catalogue import catalogue
from formerlab.report.committed import INDEX, SUFFIXES, index
from formerlab.report.write import same_rows
from formerlab.results.read import has_runs

ROOT = Path(__file__).resolve().parents[2]
SITE = """
import os, sys

class NoTorch:
    @staticmethod
    def find_spec(name, *_):
        if name == "torch":
            raise ModuleNotFoundError("import of torch halted")

sys.meta_path.insert(0, NoTorch)

from formerlab.report import write
from formerlab.report.tables import cells

outcome_text, load_rows, calls = cells.outcome_text, write.load_rows, []

def noted_text(*verdict):
    calls.append(verdict)
    return outcome_text(*verdict)

def noted_rows(entry, results):
    calls.clear()
    rows = load_rows(entry, results)
    if calls and entry.kind == "figure" and rows["source"].eq("ours").any() and results.scale != "pilot":
        cells.outcome_text = lambda *verdict: "another word"
        changed = write._csv(rows) != write._csv(load_rows(entry, results))
        cells.outcome_text = noted_text
        with open(os.environ["VERDICTS"], "a") as file:
            file.write(f"{results.scale}/{entry.name} {changed}\\n")
    return rows

cells.outcome_text, write.load_rows = noted_text, noted_rows
"""
"""sitecustomize.py, which every new Python process runs, including pool workers. For each figure that
shows verdicts, it notes whether its rows change if the words of the verdicts change.

A finder blocks the import, because a None entry in sys.modules would confuse scipy, which looks for torch there.
"""


def files(folder):
    """Return the committed kinds of files of figures and tables below a folder."""
    kinds = {name: SUFFIXES[entry.kind] for name, entry in catalogue().items()}
    paths = {path.relative_to(folder): kinds.get(path.stem, ()) for path in folder.glob("*/*")}
    return {path for path, suffixes in paths.items() if path.suffix[1:] in suffixes}


@pytest.mark.slow
def test_committed_figures_and_tables_are_reproduced_without_torch(tmp_path):
    """Run `make readme` and commit `figures` if rows or figures changed."""
    project, site, verdicts = tmp_path / "project", tmp_path / "site", tmp_path / "verdicts"
    project.mkdir()
    for name in ("results", "workflow", "config.yaml"):
        (project / name).symlink_to(ROOT / name)
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    environment = os.environ | {"PYTHONPATH": f"{site}:{ROOT / 'src'}", "VERDICTS": str(verdicts)}
    python = [sys.executable, "-c", "import torch"]
    assert b"import of torch halted" in subprocess.run(python, env=environment, capture_output=True).stderr
    command = [sys.executable, "-m", "formerlab", "figures"]
    result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

    rendered, committed = project / "figures/cached", ROOT / "figures/cached"
    for scale in (path.name for path in (ROOT / "results/cached").glob("*/") if has_runs(path)):
        assert {"claims.csv", "runs.csv"} <= {path.name for path in (rendered / scale).glob("*.csv")}
    assert files(rendered) == files(committed)
    assert len(files(committed)) > 100
    for path in files(committed):
        if path.suffix == ".csv":
            assert same_rows(committed / path, pd.read_csv(rendered / path)), path
        if path.suffix == ".md":  # without digits, because the CSV has them
            assert len({re.sub(r"\d", "", (folder / path).read_text()) for folder in (rendered, committed)}) == 1, path
    assert index(ROOT) == (ROOT / INDEX).read_text()

    # a figure with verdicts is stale if their words change
    changed = dict(line.split() for line in verdicts.read_text().splitlines())
    assert {"overnight/denseformer_gain", "pretrained/decay_accuracy"} <= changed.keys()
    assert set(changed.values()) == {"True"}, changed
