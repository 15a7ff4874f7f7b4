"""docs/evidence_left.md has a line for every claim that the committed rows of `overnight` leave without a verdict."""

import re
from pathlib import Path

from formerlab.report.claims.registry import read_claims

DOCS = Path(__file__).parents[2] / "docs"


def test_every_claim_without_a_verdict_says_what_it_would_take():
    text = (DOCS / "verdicts.md").read_text(encoding="utf-8")
    block = text[text.index("Scale `overnight`") : text.index("Scale `pretrained`")]
    judged = set(re.findall(r"^\| \*\*([a-z0-9-]+)\*\*<br>[^|]*\| (?!not judged)", block, re.MULTILINE))
    assert len(judged) > 10
    left = (DOCS / "evidence_left.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| ([a-z0-9]+-[a-z0-9-]+) \|", left, re.MULTILINE))
    assert named == {claim.id for claim in read_claims().claims if claim.kind == "measured"} - judged
