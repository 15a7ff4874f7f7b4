"""Commands that show something write nothing: tried in a copy of the committed rows, which they must leave as it is."""

import shutil
from pathlib import Path

import pytest

from formerlab.__main__ import main
from formerlab.plan.staleness import Staleness

ROOT = Path(__file__).parents[1]
PLANS = ".formerlab"
"""Where plans are kept, which are found again instead of being made anew."""


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A checkout with the committed rows of one study, which stand for live ones too."""
    root = tmp_path_factory.mktemp("committed")
    (root / "config.yaml").write_text("scale: laptop\nstudies: [denseformer]\n")
    for name in ("workflow", "results/cached/laptop/denseformer"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "results/cached/laptop/exact.csv", root / "results/cached/laptop")
    (root / "results/live").symlink_to("cached")
    return root


def tree(root):
    """Return every file and folder with what would tell of a write."""
    kept = [path for path in root.rglob("*") if PLANS not in path.relative_to(root).parts]
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in kept}


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["plan"],
        ["plan", "--shell"],
        ["runs"],
        ["claims"],
        ["headline"],
    ],
    ids=" ".join,
)
def test_what_shows_does_not_write(words, committed, monkeypatch, capsys):
    monkeypatch.chdir(committed)
    monkeypatch.setattr(Staleness, "objection", lambda *_: "")  # older rows than the code, but for showing they will do
    before = tree(committed)
    status = main(words)
    assert tree(committed) == before
    assert (status, len(capsys.readouterr().out.splitlines()) > 5) == (0, True)
