"""Verdicts reach their readers: claims.csv, Markdown, a page, and the block of the README."""

import re

import pandas as pd
import pytest
from fixtures.checkout import ROOT
from fixtures.rows import make_decay, make_tokenformer

from formerlab.claims.book import read_claims
from formerlab.claims.coverage import missing_arms
from formerlab.claims.mapping import read_arms
from formerlab.claims.readable import markdown, readme_block
from formerlab.claims.readme import BEGIN, END, PAGES, outdated, write
from formerlab.claims.table import verdicts, write_claims
from formerlab.errors import UserError
from formerlab.results import Results

HEADLINES = [claim.id for claim in read_claims().claims if claim.headline]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("claims") / "results/cached/overnight"
    make_tokenformer(root)
    make_decay(root, (0, 1, 2))
    (root / "exact.csv").write_text("claim,name,value\ntransformer-sinusoid-linear-shift,sinusoid_linear_shift,0.0\n")
    return Results(root)


@pytest.fixture(scope="module")
def found(results):
    return verdicts(results, read_arms(ROOT, "overnight"))


def test_every_claim_is_there_headlines_first(found, results):
    text = markdown(found, results.scale)
    claims = re.findall(r"^\| \*\*(\S+)\*\*", text, re.MULTILINE)
    assert len(claims) == len(set(claims)) == 55
    assert claims[:8] == HEADLINES
    assert "p (Holm)" in text


def test_the_page_has_sources_and_traps_too(results, tmp_path):
    csv, md, html = write_claims(results, read_arms(ROOT, "overnight"), tmp_path)
    rows, page = pd.read_csv(csv), html.read_text()
    assert md.read_text().startswith("# Claims at scale overnight")
    for claim in read_claims().claims:
        assert claim.id in page
    assert "Attention Is All You Need (1706.03762), Table 3" in page
    assert "flooring both halves" in page or "flooring gives H2O" in page
    assert not re.search(r"(?:src|href)=", page), "nothing is fetched from elsewhere"
    assert rows["runs"].str.contains("grown-random-sqrt-4").any()


def test_the_block_of_the_readme_names_scale_and_what_has_no_rows(found):
    block = readme_block(found, "overnight")
    assert block.startswith("Scale `overnight`. Of 55 claims: holds ")
    for name in HEADLINES:
        assert f"**{name}**" in block
    assert "**transformer-sinusoid-linear-shift**" in block
    assert re.search(r"Not judged here, for want of runs: .*vision \d", block)


def test_the_block_is_put_between_its_marks_and_only_there(tmp_path, results):
    for name, source in (("results", results.root.parents[1]), ("workflow", ROOT / "workflow")):
        (tmp_path / name).symlink_to(source)
    (tmp_path / "docs").mkdir()
    (tmp_path / "config.yaml").symlink_to(ROOT / "config.yaml")
    for name in PAGES:
        (tmp_path / name).write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert write(tmp_path) == list(PAGES)
    assert write(tmp_path) == []
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nScale `overnight`")
    assert text.endswith(f"\n\n{END}\nafter\n")
    assert "\nold\n" not in text
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(UserError, match="no place for what is generated"):
        write(tmp_path)


def test_readme_and_docs_say_what_rows_and_scales_say():
    """After new rows, a changed scale or a changed evaluation: `make readme`."""
    assert list(outdated(ROOT)) == []


def test_every_claim_judged_at_laptop_has_its_arms_there():
    missing = missing_arms(ROOT, "laptop")
    judged = [claim for claim in read_claims().claims if claim.kind == "measured" and "laptop" in claim.scales.judged]
    assert {claim.id: missing[claim.id] for claim in judged if missing[claim.id]} == {}
