"""The pages beside the verdicts: what the missing ones would take, and which ones the second round changed."""

import re
from pathlib import Path

from formerlab.report.claims.registry import read_claims

DOCS = Path(__file__).parents[2] / "docs"
VERDICTS = (DOCS / "verdicts.md").read_text(encoding="utf-8")
BLOCKS = VERDICTS.index("Scale `overnight`"), VERDICTS.index("Scale `pretrained`")
MEASURED = {claim.id for claim in read_claims().claims if claim.kind == "measured"}


def judged(text):
    """Return, by claim, the first word of its verdict in a block of the page; nothing of what is not judged."""
    rows = re.findall(r"^\| \*\*([a-z0-9-]+)\*\*<br>[^|]*\| (?!not judged)(\w+)", text, re.MULTILINE)
    assert len(rows) > 10
    return dict(rows)


def lines(page):
    """Return the cells of the lines of a page's tables that begin with a claim, by claim."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^\| ([a-z0-9]+-[a-z0-9-]+) \| (.*) \|$", text, re.MULTILINE)
    return {claim: cells.split(" | ") for claim, cells in found}


def test_every_claim_without_a_verdict_says_what_it_would_take():
    assert set(lines("evidence_left.md")) == MEASURED - set(judged(VERDICTS[slice(*BLOCKS)]))


def test_verdicts_that_changed_are_those_of_the_rows():
    here, released = judged(VERDICTS[slice(*BLOCKS)]), judged(VERDICTS[BLOCKS[1] :])
    changed = lines("verdicts_changed.md")
    now = {
        claim: cells[1] for claim, cells in changed.items() if cells[1] in ("holds", "fails", "undecided", "indicative")
    }
    assert now == {claim: here.get(claim, released.get(claim)) for claim in now}
    assert set(changed) - set(now) <= MEASURED - set(here) - set(released), "gone, and yet judged"
