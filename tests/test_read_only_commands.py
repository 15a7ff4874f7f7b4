"""Commands that show results write no files. The test uses a copy of the committed rows."""

import shutil
from pathlib import Path

import pytest

from formerlab.__main__ import main
from formerlab.plan.staleness import Staleness

ROOT = Path(__file__).parents[1]
PLANS = ".formerlab"
"""The folder of plans, which commands may write and reuse."""


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return a checkout with the committed rows of one study, also as live rows."""
    root = tmp_path_factory.mktemp("committed")
    (root / "config.yaml").write_text("scale: laptop\nstudies: [denseformer]\n")
    for name in ("workflow", "results/cached/laptop/denseformer"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "results/cached/laptop/exact.csv", root / "results/cached/laptop")
    (root / "results/live").symlink_to("cached")
    return root


def tree(root):
    """Return every file and folder with the properties that a write would change."""
    paths = [path for path in root.rglob("*") if PLANS not in path.relative_to(root).parts]
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}


@pytest.mark.parametrize(
    "words", [["status"], ["plan"], ["plan", "--shell"], ["runs"], ["claims"], ["headline"]], ids=" ".join
)
def test_commands_that_show_results_write_no_files(words, committed, monkeypatch, capsys):
    monkeypatch.chdir(committed)
    monkeypatch.setattr(Staleness, "staleness_reason", lambda *_: "")  # the rows are older than the code
    tree_before = tree(committed)
    status = main(words)
    assert tree(committed) == tree_before
    assert (status, len(capsys.readouterr().out.splitlines()) > 5) == (0, True)
