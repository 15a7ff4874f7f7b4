"""Verdicts reach their readers: claims.csv, Markdown, a page, and the block of the README."""

import re
from dataclasses import replace

import pandas as pd
import pytest
from fixtures.checkout import ROOT
from fixtures.rows import make_decay, make_tokenformer

from formerlab.commands.readme import BEGIN, END, PAGES, outdated, write
from formerlab.errors import UserError
from formerlab.plan.claim_arms import read_arms
from formerlab.plan.claim_coverage import missing_arms
from formerlab.report.claims.arms import Arm, ClaimArms
from formerlab.report.claims.readable import FIRST_SCREEN, all_block, counts, first_screen, markdown
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.table import frame, read_withdrawn, verdicts, write_claims
from formerlab.report.claims.verdict import ItemVerdict
from formerlab.results.read import Results

WITHDRAWN, REASON = "tokenformer-growth-equal-total-flops", "the rows were taken at full moon"
HEADLINES = [claim.id for claim in read_claims().claims if claim.headline]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("claims") / "results/cached/overnight"
    make_tokenformer(root)
    make_decay(root, (0, 1, 2))
    (root / "exact.csv").write_text("claim,name,value\ntransformer-sinusoid-linear-shift,sinusoid_linear_shift,0.0\n")
    (root / "tokenformer/withdrawn.yaml").write_text(f"{WITHDRAWN}: {REASON}\n")
    return Results(root)


@pytest.fixture(scope="module")
def found(results):
    return verdicts(results, read_arms(ROOT, "overnight"))


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    """claims.csv, claims.md and claims.html."""
    return write_claims(results, read_arms(ROOT, "overnight"), tmp_path_factory.mktemp("written"))


def test_every_claim_is_there_headlines_first(found, results):
    text = markdown(found, results.scale)
    claims = re.findall(r"^\| \*\*(\S+)\*\*", text, re.MULTILINE)
    assert len(claims) == len(set(claims)) == 60
    assert claims[:10] == HEADLINES
    assert "p (Holm)" in text


def test_exact_and_measured_claims_are_never_added_up(found):
    sentences = re.findall(r"Of (\d+) (\w+) claims: (.*?)\.", counts(found))
    assert [(total, kind) for total, kind, _ in sentences] == [("44", "measured"), ("16", "exact")]
    assert sentences[1][2] == "holds 2, not judged 14"
    assert all(int(total) == sum(map(int, re.findall(r"\d+", listed))) for total, _, listed in sentences)
    headings = re.findall(r"^## (.*)$", markdown(found, "overnight"), re.MULTILINE)
    assert "decay, measured: decided by trained models" in headings
    assert headings[-1].startswith("decay, exact: decided by arithmetic")


def test_a_changed_criterion_is_marked_beside_its_verdict(found, results, written):
    text = markdown(found, results.scale)
    line = next(line for line in text.splitlines() if "**decay-mask-closer-to-ideal**" in line)
    assert re.search(r"\| \w+ at overnight<br>\[interval changed in version 2\] \|", line)
    assert "known by then: all rows committed at scale overnight" in text
    rows = pd.read_csv(written[0]).set_index("claim")
    assert set(rows.loc["decay-half-recent-beats-h2o", "changed"]) == {"added in version 2"}
    assert rows.loc[["denseformer-weight-pattern"], "changed"].isna().all()


def test_a_withdrawn_claim_says_so_and_why_wherever_verdicts_are_shown(found, results, written):
    shown = f"withdrawn: {REASON}"
    line = f"scratch at its final size. | {shown} |  | none; the paper's cost claim implies it |  |  |"
    assert line in markdown(found, results.scale)
    assert line in all_block({results.scale: found})
    csv, _, html = written
    row = pd.read_csv(csv).set_index("claim").loc[WITHDRAWN]
    assert (row["outcome"], row["verdict"]) == ("withdrawn", shown)
    assert shown in html.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokenformer-growth: old", "no claim 'tokenformer-growth'"),
        (f"{WITHDRAWN}:", "got None; write why its rows are no evidence"),
    ],
)
def test_withdrawals_of_nothing_or_without_a_reason_are_refused(tmp_path, text, message):
    (tmp_path / "tokenformer").mkdir()
    (tmp_path / "tokenformer/withdrawn.yaml").write_text(text)
    with pytest.raises(UserError, match=r"tokenformer/withdrawn\.yaml") as error:
        read_withdrawn(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("scale", "run", "expected"),
    [
        ("overnight", "decoder", "holds at overnight, this model alone"),
        ("pretrained", "some-released-model", "holds for some-released-model"),
        ("laptop", "decoder", "indicative"),
    ],
)
def test_a_verdict_on_one_model_says_whose_it_is(tmp_path, scale, run, expected):
    """One seed: of this model alone. At scale pretrained: of the released model, by its name."""
    make_decay(tmp_path / scale, (0,), run)
    items = {
        f"budget_{100 * budget:.0f}_percent": {
            "split": Arm(run=run, policy="decay", alpha=0.2, recent=0.5, budget=budget),
            "h2o": Arm(run=run, policy="h2o", budget=budget),
        }
        for budget in (0.1, 0.2)
    }
    name = "decay-half-recent-beats-h2o"
    found = verdicts(Results(tmp_path / scale), {"decay": {name: ClaimArms(items=items)}})
    rows = frame(found).set_index("claim").loc[name]
    assert set(rows["verdict"]) == {expected}
    assert rows["ours"].str.startswith("effect = 0.0").sum() == 2


def test_the_first_screen_has_a_line_with_one_number_for_each_of_its_claims(found):
    lines = first_screen({"laptop": found, "overnight": found}).splitlines()[2:]
    assert len(lines) == len(FIRST_SCREEN) == 8
    verdicts = {verdict.claim.id: verdict for verdict in found}
    for name, line in zip(FIRST_SCREEN, lines, strict=True):
        outcome, claim, number, scale = (cell.strip("* ") for cell in line.strip("|").split(" | "))
        assert (outcome, claim, scale) == (verdicts[name].outcome, verdicts[name].claim.statement, "overnight")
        meaning = f"{FIRST_SCREEN[name].meaning}: "
        assert number.startswith(meaning) or (not number and outcome == "not judged")


def test_a_claim_on_several_comparisons_says_on_the_first_screen_what_each_comes_to(found):
    name = "denseformer-better-at-equal-depth"
    (verdict,) = [one for one in found if one.claim.id == name]
    effects = {
        "web_text_depth_low": ("undecided", "0.01"),
        "web_text_depth_high": ("holds", "0.07"),
        "books": ("holds", "0.05"),
    }
    items = tuple(
        ItemVerdict(item, outcome, {"effect": effect}, runs=(f"dense-{item}", "plain"))
        for item, (outcome, effect) in effects.items()
    )
    several = replace(verdict, outcome="undecided", items=items)
    lines = first_screen({"overnight": [several if one is verdict else one for one in found]}).splitlines()[2:]
    (number,) = [cells.split(" | ")[2] for cells in lines if several.claim.statement in cells]
    runs = "dense-web_text_depth_low, plain"
    assert number == f"{FIRST_SCREEN[name].meaning}: 0.01 ({runs}); of 3 comparisons: undecided 1, holds 2"


def test_the_first_screen_is_there_before_any_of_its_scales_has_rows(found):
    lines = first_screen({"laptop": found}).splitlines()[2:]
    assert len(lines) == 8
    assert all(line.startswith("| **not judged** | ") for line in lines)


def test_the_page_of_verdicts_names_scale_and_what_has_no_rows(found):
    block = all_block({"overnight": found, "laptop": found})
    assert block.startswith("Scale `overnight`. Of 44 measured claims: ")
    for name in HEADLINES:
        assert f"**{name}**" in block
    assert "**transformer-sinusoid-linear-shift**" in block
    assert re.search(r"Not judged here, for want of runs: .*vision \d", block)
    assert "Scale `laptop`" not in block


def test_verdicts_on_released_models_stand_beside_those_of_the_largest_scale(found):
    block = all_block({"overnight": found, "pretrained": found})
    first, _, second = block.partition("Scale `pretrained`. ")
    assert first.startswith("Scale `overnight`. ")
    assert "4-bit weights" in second
    assert "**decay-mask-closer-to-ideal**" in second
    assert "not judged" not in second
    assert "**transformer-sinusoid-linear-shift**" not in second


def test_the_block_is_put_between_its_marks_and_only_there(tmp_path, results):
    for name, source in (("results", results.root.parents[1]), ("workflow", ROOT / "workflow")):
        (tmp_path / name).symlink_to(source)
    (tmp_path / "docs").mkdir()
    (tmp_path / "config.yaml").symlink_to(ROOT / "config.yaml")
    for name in PAGES:
        (tmp_path / name).write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert write(tmp_path) == list(PAGES)
    assert write(tmp_path) == []
    text = (tmp_path / "docs/verdicts.md").read_text()
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
