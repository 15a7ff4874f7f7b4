"""Verdicts match the registered lists and are shown in claims.csv, claims.html, README and docs."""

import math
import re
from dataclasses import replace

import pytest
from fixtures.checkout import ROOT
from fixtures.rows import make_decay

from formerlab.commands import readme
from formerlab.commands.readme import BEGIN, END, outdated, verdicts_by_scale, with_blocks
from formerlab.errors import UserError
from formerlab.report.claims.arms import read_arms
from formerlab.report.claims.readme_findings import (
    KEY,
    README_CLAIMS,
    README_ORDER,
    findings_table,
    readme_findings,
)
from formerlab.report.claims.registry import Arm, ClaimArms, read_claims
from formerlab.report.claims.render import (
    CONDITION_NOT_MET,
    ORIGINS,
    SIGNS,
    best_verdicts,
    outcome_counts,
    verdict_card,
    verdict_cards,
    verdict_frame,
    verdicts_page,
)
from formerlab.report.claims.verdict import evaluate_results
from formerlab.results.read import Results

HEADLINES = [claim.id for claim in read_claims().claims if claim.headline]
NEWER_VERDICTS = {
    "overnight": {
        "tokenformer-growth-beats-continuing": "not_tested -> agrees, by long",
        "tokenformer-worse-than-modern-transformer": "not_tested -> agrees",
        "tokenformer-gap-shrinks-with-training": "not_tested -> agrees",
        "denseformer-better-at-equal-depth": "not_tested -> agrees",
        "denseformer-sparse-keeps-the-gain": "not_tested -> cannot_tell",
    },
    "pretrained": {"decay-mask-closer-to-ideal": "not_tested -> agrees"},
}
"""Verdicts that changed because of new rows. The lists in claims.yaml have only changes because of new rules."""
LISTED_VERDICTS = {
    scale: {claim: text for change in read_claims().changes for claim, text in change.verdicts.get(scale, {}).items()}
    for scale in ("overnight", "pretrained", "laptop")
}


@pytest.fixture(scope="module")
def by_scale():
    """The verdicts on the committed rows, evaluated once because this takes seconds."""
    return verdicts_by_scale(ROOT)


@pytest.fixture
def verdicts(by_scale):
    return by_scale["overnight"]


@pytest.mark.parametrize("scale", LISTED_VERDICTS)
def test_committed_rows_have_the_listed_verdicts(by_scale, scale):
    """Claims that are missing in the registered lists and in NEWER_VERDICTS have no rows or are not tested."""
    root = ROOT / "results/cached" / scale
    verdicts = by_scale.get(scale) or evaluate_results(Results(root), read_arms(ROOT, scale))
    verdict_by_claim = {verdict.claim.id: verdict for verdict in verdicts}
    for claim, text in (LISTED_VERDICTS[scale] | NEWER_VERDICTS.get(scale, {})).items():
        word, *by = re.split(r"[:,] ", text.partition("-> ")[2])
        assert verdict_by_claim[claim].outcome == word, (claim, text, verdict_by_claim[claim].items)
        deciding = {item.item for item in verdict_by_claim[claim].items if item.outcome == word}
        assert not (by and by[0].startswith("by ")) or deciding == {*by[0].removeprefix("by ").split(" and ")}
    tested = {
        name
        for name, verdict in verdict_by_claim.items()
        if verdict.outcome in ("agrees", "contradicts", "cannot_tell")
    }
    assert tested <= LISTED_VERDICTS[scale].keys() | NEWER_VERDICTS.get(scale, {}).keys()


def test_every_claim_is_listed_with_headlines_first_and_separate_totals(verdicts):
    claims, page = list(dict.fromkeys(verdict_frame(verdicts)["claim"])), verdicts_page(verdicts, "overnight")
    assert len(claims) == 62
    assert claims[: len(HEADLINES)] == HEADLINES
    assert all(claim in page for claim in claims)
    sentences = re.findall(r"Of (\d+) claims (about|proved) [\w ,]+: (.*?)\.", outcome_counts(verdicts))
    assert [(total, kind) for total, kind, _ in sentences] == [("46", "about"), ("16", "proved")]
    assert all(int(total) == sum(map(int, re.findall(r"\d+", listed))) for total, _, listed in sentences)


@pytest.mark.parametrize(
    ("scale", "run", "expected"),
    [
        ("overnight", "decoder", "agrees at scale overnight, this model alone"),
        ("pretrained", "some-released-model", "agrees for some-released-model"),
        ("pretrained", "masks-smollm2-135m-instruct", "agrees for SmolLM2-135M-Instruct"),
        ("laptop", "decoder", "no verdict: condition not met"),
    ],
)
def test_a_verdict_on_one_model_states_the_model(tmp_path, scale, run, expected):
    """With one seed, the verdict is on this model alone. At scale pretrained it states the released model."""
    make_decay(tmp_path / scale, (0,), run)
    items = {
        f"budget_{100 * budget:.0f}_percent": {
            "split": Arm(run=run, policy="decay", alpha=0.2, recent=0.5, budget=budget),
            "h2o": Arm(run=run, policy="h2o", budget=budget),
        }
        for budget in (0.1, 0.2)
    }
    name = "decay-half-recent-beats-h2o"
    verdicts = evaluate_results(Results(tmp_path / scale), {"decay": {name: ClaimArms(items=items)}})
    rows = verdict_frame(verdicts).set_index("claim").loc[name]
    assert set(rows["verdict"]) == {expected}
    assert rows["ours"].str.startswith("effect = 0.0").sum() == 2


def rows_of(table):
    """Return the rows of a Markdown table without its heading."""
    return [line for line in table.splitlines() if line.startswith("| ")][2:]


def test_the_readme_counts_every_claim_once(by_scale):
    """Each line counts one group: the claims of the papers, the claims of others and our own, or the exact claims."""
    lines = [line for line in readme_findings(by_scale).splitlines() if line.startswith("Of ")]
    totals, counts = [], []
    for line in lines:
        total, *numbers = map(int, re.findall(r"\d+", line))
        totals.append(total)
        counts.append(sum(numbers))
    assert totals == counts == [35, 5 + 6, 16]


def test_the_page_of_verdicts_counts_every_claim_about_trained_models_by_origin(by_scale):
    origins = {claim.origin for claim in read_claims().claims if claim.kind == "measured"}
    assert origins == ORIGINS.keys()
    lines = re.findall(r"^- [\w ]+, (\d+) claims: (.*)$", verdict_cards(by_scale), re.MULTILINE)
    assert [int(total) for total, _ in lines] == [35, 5, 6]
    assert all(int(total) == sum(map(int, re.findall(r"\d+", listed))) for total, listed in lines)


def test_the_readme_has_a_row_for_each_claim_of_a_paper_that_is_contradicted(by_scale):
    contradicted = {
        verdict.claim.id
        for verdict in best_verdicts(by_scale)
        if (verdict.claim.kind, verdict.claim.origin, verdict.outcome) == ("measured", "paper", "contradicts")
    }
    assert contradicted
    assert contradicted <= {name for name, line in README_CLAIMS.items() if line.brief}


def test_the_key_of_the_readme_explains_each_sign_of_the_table(by_scale):
    table, key = readme_findings(by_scale).split("\n\n")[:2]
    words = [row.split(" | ")[3] for row in rows_of(table)]
    signs = {word[0] for word in words} | {"†" for word in words if "†" in word}
    assert signs == {line[2] for line in key.splitlines()} == KEY.keys()


def test_a_gain_and_a_difference_of_losses_become_the_same_change_of_perplexity():
    gains, losses = (
        README_CLAIMS[name] for name in ("denseformer-better-at-equal-depth", "tokenformer-growth-beats-continuing")
    )
    assert gains.convert(0.1) == losses.convert(-0.1) == pytest.approx(100 * (math.exp(-0.1) - 1))


def test_the_first_scale_that_tests_a_claim_is_shown(verdicts):
    untested = evaluate_results(Results(ROOT / "results/cached/laptop"), {})
    best = best_verdicts({"laptop": untested, "overnight": verdicts})
    tested = [verdict for verdict in best if verdict.scale == "overnight"]
    assert "denseformer-better-at-equal-depth" in {verdict.claim.id for verdict in tested}
    assert len(rows_of(findings_table({"laptop": untested, "overnight": verdicts}))) == len(README_CLAIMS)


def test_both_tables_of_findings_are_sorted_by_verdict_with_a_stable_order(verdicts):
    names = list(README_CLAIMS)
    outcomes = {name: README_ORDER[5 - index % 6] for index, name in enumerate(names)}
    mixed = [replace(verdict, outcome=outcomes.get(verdict.claim.id, verdict.outcome)) for verdict in verdicts]
    in_order = [README_CLAIMS[name] for word in README_ORDER for name in names if outcomes[name] == word]
    assert [row.split("**")[1] for row in rows_of(findings_table({"laptop": mixed}))] == [
        line.claim for line in in_order
    ]
    briefs = [line.brief for line in in_order if line.brief]
    assert [row.removeprefix("| ").split(" | ")[0] for row in rows_of(readme_findings({"laptop": mixed}))] == briefs
    assert briefs


def test_a_claim_that_is_not_tested_says_whether_it_was_not_measured_or_does_not_meet_a_condition(by_scale):
    """docs/results.md, docs/verdicts.md and claims.csv show the reason. The two pages also state the condition."""
    untested = [verdict for verdict in best_verdicts(by_scale) if verdict.outcome == "not_tested"]
    measured = {verdict.claim.id for verdict in untested if any(item.quantities for item in verdict.items)}
    words = {verdict.claim.id: verdict_frame([verdict])["verdict"].iloc[0] for verdict in untested}
    assert {name for name, word in words.items() if word == CONDITION_NOT_MET} == measured
    assert {word for name, word in words.items() if name not in measured} == {"not tested: not measured"}
    for verdict in untested:
        assert f"<br>Verdict: {words[verdict.claim.id]}<br>" in verdict_card(verdict)
        reason = verdict_card(verdict).partition("<br>Why: ")[2]
        assert not re.search(r"'\w|planned run \(", reason), "no internal names"
        condition = re.search(r"\(needed: |do not meet the requirement: ", reason)
        assert bool(condition) == (verdict.claim.id in measured)
    lines = [row for row in rows_of(findings_table(by_scale)) if "no verdict" in row.partition("<br>")[0]]
    assert all(line.startswith(f"| {SIGNS['not_tested']} no verdict ") for line in lines)
    assert all(re.search(r" \| Conditions? not met: [^|]* \|$", line) for line in lines)
    assert lines


def test_the_readme_says_that_the_rules_of_all_its_claims_changed_and_marks_altered_verdicts(verdicts):
    registry = read_claims()
    readme_claims = [claim for claim in registry.claims if claim.id in README_CLAIMS and claim.kind == "measured"]
    assert all(map(registry.revisions, readme_claims)), "README says that the rules of every claim changed"
    outcomes = {verdict.claim.id: verdict.outcome for verdict in verdicts}
    former = {claim.id: registry.former_outcome(claim, outcomes[claim.id]) for claim in readme_claims}
    altered = {name for name, outcome in former.items() if outcome}
    by_id = {claim.id: claim for claim in readme_claims}
    depth, new_text = by_id["denseformer-better-at-equal-depth"], by_id["tokenformer-continued-training-lower"]
    assert registry.former_outcome(depth, "agrees") == "not_tested", (
        "version 4 withdrew the verdict, and new runs restored it"
    )
    assert registry.former_outcome(depth, "not_tested") == "agrees"
    assert registry.former_outcome(new_text, "contradicts") == "cannot_tell"
    assert "decay-beats-h2o" not in altered, "the outcome `undecided` was renamed to `cannot_tell`"
    by_scale = {"overnight": verdicts}
    marked = {row.split("**")[1] for row in rows_of(findings_table(by_scale)) if " †<br>(before: *" in row}
    assert marked == {README_CLAIMS[name].claim for name in altered} < {line.claim for line in README_CLAIMS.values()}
    marked = {
        row.removeprefix("| ").split(" | ")[0] for row in rows_of(readme_findings(by_scale)) if " †<br>(was " in row
    }
    assert marked == {README_CLAIMS[name].brief for name in altered} - {""}


def test_the_cells_of_both_tables_of_findings_are_short():
    for line in README_CLAIMS.values():
        assert len(line.claim.split()) <= 20
        assert max(len(cell.split()) for cell in (line.number, line.published)) <= 15
        assert len(line.objection.split()) <= 27
        assert len(line.short_objection.split()) <= 10
        assert bool(line.short_objection) == bool(line.paper) == bool(line.brief)
        assert max(len(cell.split()) for cell in (line.brief, line.paper, line.result)) <= 16


def test_the_readme_has_a_claim_of_each_paper():
    briefs = [line.brief for line in README_CLAIMS.values() if line.brief]
    assert {re.match(r"\*\*\[(\w+)\]", brief)[1] for brief in briefs} == {
        *("Transformer", "Tokenformer", "DenseFormer", "Decay")
    }


def test_cards_show_numbers_in_the_unit_of_their_label(by_scale):
    """Rows have fractions of questions and logarithms of ratios.

    Cards show percentage points and ratios, as published.
    """
    cards = {verdict.claim.id: verdict for verdict in best_verdicts(by_scale)}
    formats = {"decay-beats-h2o": "{:.1f} [{:.1f}, {:.1f}] points", "vision-gelu-over-exp": "{:.2f} [{:.2f}, {:.2f}];"}
    for (name, form), convert in zip(formats.items(), (lambda x: 100 * x, math.exp), strict=True):
        (item,) = cards[name].items
        interval = item.quantities["effect"].interval(item.confidence)
        text = form.format(*map(convert, (interval.mean, interval.low, interval.high)))
        assert f": {text}" in verdict_card(cards[name])


def test_every_number_has_a_label_and_cards_show_no_identifiers(by_scale):
    """Names of quantities, arms and items are shown as words, and `requires` has a label."""
    for claim in read_claims().claims:
        needed = {*claim.criterion.let} | ({"requires"} if claim.criterion.requires else set())
        assert needed <= claim.labels.keys(), claim.id
    for verdict in (verdict for verdicts in by_scale.values() for verdict in verdicts):
        if verdict.claim.kind != "measured":
            continue
        text = verdict_card(verdict).partition("<br>")[2]
        names = {*verdict.claim.arms, *verdict.claim.criterion.for_each, *verdict.claim.criterion.let}
        assert not [name for name in names if "_" in name and name in text], text
        assert not re.search(r"\b(effect|excess|search share|maps no run|lo\(|hi\()", text), text


def test_generated_blocks_replace_only_the_text_between_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbetween\n{BEGIN}{END}\nafter\n")
    expected = f"before\n{BEGIN}\n\nnew\n\n{END}\nbetween\n{BEGIN}\n\nlast\n\n{END}\nafter\n"
    assert with_blocks(page, "new\n", "last") == expected
    with pytest.raises(UserError, match="1 generated blocks are needed, each between the lines"):
        with_blocks(page, "new")


def test_generated_blocks_are_up_to_date(by_scale, monkeypatch):
    """Run `make readme` if rows, a scale or the evaluation changed."""
    monkeypatch.setattr(readme, "verdicts_by_scale", lambda root: by_scale)
    assert list(outdated(ROOT)) == []
