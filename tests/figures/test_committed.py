"""The committed figures of the evidence, and the page that shows them."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from fixtures.rows import make_denseformer, make_run

from formerlab.report import committed
from formerlab.report.drawings import catalogue
from formerlab.report.write import same_rows

ROOT = Path(__file__).parents[2]
CACHED = ROOT / "figures" / "cached"
MOST_BYTES = 6_000_000


def test_committed_figures_show_what_the_committed_rows_say():
    """After new rows, or where the numbers of a figure are others: `make readme`, and commit `figures`."""
    assert committed.complaint(ROOT) == ""


def test_the_page_shows_every_committed_file_and_nothing_else():
    shown = {CACHED.parent / name for name in re.findall(r"\]\((cached/[^)]+)\)", (ROOT / committed.INDEX).read_text())}
    kept = {path for ending in ("png", "md", "csv") for path in CACHED.glob(f"*/*.{ending}")}
    kept = {path for path in kept if path.stem in catalogue()}
    kept = {path for path in kept if committed.is_kept(ROOT, catalogue()[path.stem], path.parent.name)}
    assert shown == kept
    assert sum(path.stat().st_size for path in kept) < MOST_BYTES


def test_a_figure_of_several_scales_has_one_heading(tmp_path):
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    for scale in ("overnight", "pretrained"):
        path = tmp_path / f"figures/cached/{scale}/decay_accuracy.png"
        path.parent.mkdir(parents=True)
        path.touch()
    page = committed.index(tmp_path)
    places = [page.index(f"(cached/{scale}/decay_accuracy.png)") for scale in ("overnight", "pretrained")]
    assert places == sorted(places)
    assert "\n#" not in page[places[0] : places[1]]


@pytest.mark.usefixtures("unsaved")
def test_what_is_outdated_is_drawn_and_what_lost_its_rows_goes(tmp_path):
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    rows = tmp_path / "results" / "cached" / "overnight"
    make_denseformer(rows, (0,), depths=(4,))
    assert re.fullmatch(
        r"figures/cached/overnight/\w+\.\w+ and \d+ more: not what results/cached gives now; "
        "run make readme, commit figures",
        committed.complaint(tmp_path),
    )
    drawn = committed.refresh(tmp_path)
    assert {"figures/cached/overnight/denseformer_depth.png", "figures/README.md"} <= set(drawn)
    assert committed.complaint(tmp_path) == ""
    assert committed.refresh(tmp_path) == []
    page = (tmp_path / "figures/README.md").read_text()
    assert "![denseformer_depth](cached/overnight/denseformer_depth.png)" in page

    shutil.rmtree(rows)
    make_run(rows, "tokenformer", "tokenformer-1")
    committed.refresh(tmp_path)
    assert not list(tmp_path.glob("figures/cached/overnight/denseformer_*.csv"))
    assert "denseformer_depth" not in (tmp_path / "figures/README.md").read_text()


def test_the_last_digits_of_a_number_are_no_change(tmp_path):
    path, rows = tmp_path / "rows.csv", pd.DataFrame({"run": ["a"], "loss_nats": [4.0], "seeds": [None]})
    assert not same_rows(path, rows)
    rows.to_csv(path, index=False)
    assert same_rows(path, rows.assign(loss_nats=4.0 + 1e-12))
    assert not same_rows(path, rows.assign(loss_nats=4.001))
    assert not same_rows(path, rows.assign(run="b"))
