"""report.html: a self-contained page with every figure of a scale."""

import re
from pathlib import Path

import pandas as pd
import pytest
from fixtures.rows import dwa, make_run, model
from PIL import Image

from formerlab.report.catalogue import catalogue
from formerlab.report.html_report import html_report
from formerlab.report.pages import caption_title
from formerlab.results.read import Results

RUNS = ["denseformer/plain-8 (seed 0)", "denseformer/dwa-1x1-8 (seed 0)"]
STAGES = [{"data": 1}, {"train": 2}, {}, {"figures and tables": 3}]


CHANGED = "criterion changed in version 4"


@pytest.fixture
def page(tmp_path):
    figures, root = tmp_path / "figures", tmp_path / "results/live/tiny"
    figures.mkdir()
    for run, depth in (("plain-8", None), ("dwa-1x1-8", dwa(1, 1))):
        make_run(root, "denseformer", run, spec=model(8, depth=depth))
    for name in ("denseformer_depth", "denseformer_tradeoff", "denseformer_table"):
        (figures / f"{name}.rst").write_text(f"{catalogue()[name].caption} n = 3 seeds.\n\nCommand: ``x``")
        if name != "denseformer_table":
            Image.new("RGB", (800, 400), "white").save(figures / f"{name}.png")
    (figures / "denseformer_table.md").write_text("")
    (figures / "denseformer_table.html").write_text("<body>\n<h1>denseformer_table</h1>\n<p>x</p><h2>Ours</h2></body>")
    columns = ["claim", "item", "outcome", "verdict", "changed", "ours", "runs", "statement"]
    claims = [
        ("denseformer-better", "", *["agrees"] * 2, CHANGED, "effect = 1", "dwa-1x1-8, plain-8", "Better <b>at depth"),
        ("denseformer-other", "", *["contradicts"] * 2, "", None, "dwa-4x5-48", "About other runs"),
        ("decay-elsewhere", "", *["contradicts"] * 2, "", None, "plain-8", "Of another study"),
    ]
    pd.DataFrame(claims, columns=columns).to_csv(figures / "claims.csv", index=False)
    names = ("denseformer_table", "denseformer_depth", "denseformer_tradeoff", "denseformer_flow")
    studies = {
        "denseformer": {"title": "DenseFormer", "question": "Does <depth> pay?"},
        "vision": {"title": "Vision", "question": "Is it as good?"},
    }
    return html_report(Results(Path(root)), figures, studies, dict.fromkeys((*names, "vision_rates"), RUNS), STAGES)


def test_page_begins_with_main_figures_tables_verdicts_and_thumbnails(page):
    scope, _, thumbnails = page.partition("<section")[0].partition('<div class="thumbnails">')
    assert "2 finished runs of 1 studies at scale tiny: 20 s of training on synthetic processor." in scope
    assert "no interval contains the variance between seeds" in scope
    main_figures, _, thumbnails = thumbnails.partition("</div>")
    assert re.findall(r'href="#(\w+)".*?<b>.*?</b> To see: \w', main_figures) == ["denseformer_depth"]
    tables, _, overview = thumbnails.partition('class="thumbnails"')
    assert tables.index("<td>dwa-1x1-8</td>") < tables.index("1 <span class")  # numbers precede verdicts
    assert "Of another study" not in tables
    links = re.findall(r'href="#(\w+)"', overview)
    assert links == ["denseformer_depth", "denseformer_tradeoff"]
    assert all(f'id="{name}"' in page for name in [*links, "denseformer_table"])
    assert "denseformer_flow" not in page  # not rendered


def test_a_study_without_figures_shows_the_command_that_renders_them(page):
    assert page.count("No figures or tables yet") == 1
    command = "<code>snakemake --cores 2 vision --config scale=tiny</code>"
    assert command in page.partition('<section id="vision">')[2]


def test_each_figure_has_title_caption_verdicts_command_and_runs(page):
    article = re.search(r'<article id="denseformer_depth">.*?</article>', page, re.DOTALL)[0]
    assert caption_title(catalogue()["denseformer_depth"].caption) in article
    assert " n = 3 seeds.</p>" in article, "the notes of the figure follow its caption"
    assert "python -m formerlab draw denseformer_depth --scale tiny" in article
    assert "denseformer/plain-8 (seed 0)" in article
    assert f"Better &lt;b&gt;at depth ({CHANGED})" in article
    assert "About other runs" not in article
    assert "About other runs" in page
    assert "Of another study" not in page


def test_page_loads_no_other_files_and_escapes_text(page):
    assert not re.findall(r'(?:src|href)="(?!data:image/png|#)', page)
    assert "<script" not in page
    assert "Does &lt;depth&gt; pay?" in page


def test_page_ends_with_workflow_and_provenance(page):
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[-2:] == ["The workflow, by stage", "Provenance and cost"]
    workflow = page.partition("The workflow, by stage")[2]
    assert workflow.count("&rarr;") == 2
    assert "<b>train</b> 2 jobs" in workflow


def test_titles_are_short():
    titles = [caption_title(entry.caption) for entry in catalogue().values()]
    assert all(3 < len(text) < 120 for text in titles)
