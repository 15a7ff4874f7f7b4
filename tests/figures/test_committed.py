"""The committed figures of the evidence, and the page that shows them."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from fixtures.rows import make_denseformer, make_run
from matplotlib.figure import Figure
from PIL import Image

from formerlab.report import committed
from formerlab.report.catalogue import catalogue
from formerlab.report.tables.cells import claim_verdicts
from formerlab.report.write import HIDDEN, same_rows, save
from formerlab.results.read import Results

ROOT = Path(__file__).parents[2]
CACHED = ROOT / "figures" / "cached"
SIZE_LIMIT_BYTES = 6_000_000


def test_committed_figures_show_all_their_marks():
    pictures = [*CACHED.glob("*/*.png")]
    assert not [path.name for path in pictures if HIDDEN in Image.open(path).info["Description"]]
    assert len(pictures) > 30


def test_verdicts_name_their_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    results = Results(ROOT / "results" / "cached" / "overnight")
    sparse, persists = "denseformer-sparse-keeps-the-gain", "denseformer-gain-persists-with-training"
    simpler = "denseformer-beats-simpler-skips"
    verdicts = claim_verdicts(results, "denseformer", sparse, persists, simpler, "denseformer-better-than-deeper")
    assert {claim: verdict.word for claim, verdict in verdicts.items()} == {
        sparse: "cannot tell",
        persists: "agrees",
        simpler: "no verdict",
        "denseformer-better-than-deeper": "not tested",
    }
    assert "long-dwa-1x1-8" in verdicts[persists].runs


def test_the_page_links_exactly_the_committed_files():
    links = {CACHED.parent / name for name in re.findall(r"\]\((cached/[^)]+)\)", (ROOT / committed.INDEX).read_text())}
    files = {path for suffix in ("png", "md", "csv") for path in CACHED.glob(f"*/*.{suffix}")}
    files = {path for path in files if path.stem in catalogue()}
    files = {path for path in files if committed.is_committed(ROOT, catalogue()[path.stem], path.parent.name)}
    assert links == files
    assert sum(path.stat().st_size for path in files) < SIZE_LIMIT_BYTES


def test_a_figure_of_several_scales_has_one_heading(tmp_path):
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    for scale in ("overnight", "pretrained"):
        path = tmp_path / f"figures/cached/{scale}/decay_accuracy.png"
        path.parent.mkdir(parents=True)
        save(Figure(label="n = 3 seeds. At the edge of the grid: 0.1."), path)
    page = committed.index(tmp_path)
    first, second = (page.index(f"(cached/{scale}/decay_accuracy.png)") for scale in ("overnight", "pretrained"))
    assert first < second
    assert "\n#" not in page[first:second]
    assert "At the edge of the grid: 0.1." in page[first:second]
    # the first note is printed in the figure and not repeated on the page
    assert "n = 3 seeds" not in page[first:second]


@pytest.mark.usefixtures("unsaved")
def test_stale_figures_are_rendered_and_figures_without_rows_are_removed(tmp_path):
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    rows = tmp_path / "results" / "cached" / "overnight"
    make_denseformer(rows, (0,), depths=(4,))
    assert re.fullmatch(
        r"figures/cached/overnight/\w+\.\w+ and \d+ more: do not match results/cached; "
        "run `make readme` and commit figures/",
        committed.stale_message(tmp_path),
    )
    changed = committed.refresh(tmp_path)
    assert {"figures/cached/overnight/denseformer_depth.png", "figures/README.md"} <= set(changed)
    assert committed.stale_message(tmp_path) == ""
    assert committed.refresh(tmp_path) == []
    page = (tmp_path / "figures/README.md").read_text()
    assert "![denseformer_depth](cached/overnight/denseformer_depth.png)" in page

    shutil.rmtree(rows)
    make_run(rows, "tokenformer", "tokenformer-1")
    committed.refresh(tmp_path)
    assert not list(tmp_path.glob("figures/cached/overnight/denseformer_*.csv"))
    assert "denseformer_depth" not in (tmp_path / "figures/README.md").read_text()


def test_rows_that_differ_only_by_rounding_are_the_same(tmp_path):
    path, rows = tmp_path / "rows.csv", pd.DataFrame({"run": ["a"], "loss_nats": [4.0], "seeds": [None]})
    assert not same_rows(path, rows)
    rows.to_csv(path, index=False)
    assert same_rows(path, rows.assign(loss_nats=4.0 + 1e-12))
    assert not same_rows(path, rows.assign(loss_nats=4.001))
    assert not same_rows(path, rows.assign(run="b"))
