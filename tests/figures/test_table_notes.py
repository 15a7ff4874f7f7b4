"""Marks, letters and notes below tables."""

from pathlib import Path

import pandas as pd
import pytest

from formerlab.report.columns import verdict_words
from formerlab.report.pages import DAGGER, SECTION, format_table
from formerlab.report.tables.cells import ClaimVerdict, claim_verdicts, needed_words
from formerlab.report.terms import terms
from formerlab.report.write import with_claim_letters
from formerlab.results.read import Results

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("alone", "pooled", "mark"),
    [((0.01, 0.1), (-0.1, 0.2), SECTION), ((-0.1, 0.2), (0.01, 0.1), DAGGER), ((0.01, 0.1), (0.02, 0.2), "")],
)
def test_a_mark_says_that_only_one_of_two_intervals_excludes_equality(alone, pooled, mark):
    names = [f"gain_nats{end}" for end in ("", "_low", "_high", "_pooled_low", "_pooled_high")]
    (cell,) = format_table(pd.DataFrame([[0.05, *alone, *pooled]], columns=names)).iloc[0]
    assert cell.endswith("]" + mark)


def test_each_claim_has_a_letter():
    rows = pd.DataFrame({"verdict": ["agrees (one)", None, "no verdict (two): few seeds; agrees (one)"]})
    letters = {}
    verdicts = with_claim_letters(rows, letters)["verdict"]
    assert verdicts.fillna("").tolist() == ["agrees (a)", "", "no verdict (b), agrees (a)"]
    assert letters == {"one": "a", "two": "b"}
    assert verdict_words(rows["verdict"][2]) == "no verdict, agrees"
    assert verdict_words("agrees (one); agrees (two)", letters) == "agrees (a, b)"


def test_notes_on_claims_have_the_limit_and_our_number(monkeypatch):
    monkeypatch.chdir(ROOT)
    results, claim = Results(ROOT / "results/cached/overnight"), "denseformer-gain-persists-with-training"
    text = claim_verdicts(results, "denseformer", claim)[claim].claim
    assert "an interval above 0 and a mean of at least 0.011 nats. Ours: 0.052 [0.046, 0.058] nats." in text


def test_limits_are_short_and_can_be_mirrored():
    verdict = ClaimVerdict(
        "agrees", frozenset(), needed="gain of x: an interval above 0 and a mean of at least 0.2 nats"
    )
    assert needed_words(verdict) == "interval above 0, mean at least 0.2"
    assert needed_words(verdict, mirrored=True) == "interval below 0, mean at most \N{MINUS SIGN}0.2"


def test_a_table_explains_the_terms_that_it_has():
    (line,) = terms("Decay minus H2O (nats)")
    assert [part.split(":")[0] for part in line.removeprefix("Terms. ").split("; ")] == ["H2O", "Decay", "nats"]
    assert terms("perplexity") == []
