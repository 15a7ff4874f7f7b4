"""claims.yaml is what was registered, and every expression in it can be read."""

import ast
import hashlib
from importlib.resources import files

import pytest

from formerlab.evaluation.exact import CHECKS
from formerlab.report.claims.registry import VERSION_HASHES, read_claims

BOOK = read_claims()


def test_the_file_is_unchanged():
    content = files("formerlab.report.claims").joinpath("claims.yaml").read_bytes()
    assert hashlib.sha256(content).hexdigest() == VERSION_HASHES[BOOK.version]
    assert len(BOOK.claims) == 60
    assert sum(claim.headline for claim in BOOK.claims) == 10


def test_what_version_2_changed_is_marked():
    marks = {claim.id: mark for claim in BOOK.claims if (mark := BOOK.changed(claim))}
    assert marks["tokenformer-continued-training-lower"] == "changed in version 2"
    assert marks["tokenformer-worse-than-modern-transformer"] == "changed in version 2"
    assert marks["decay-beats-h2o"] == "interval changed in version 2"
    added = [name for name, mark in marks.items() if mark == "added in version 2"]
    assert {claim.id for claim in BOOK.claims if claim.origin == "own"} < set(added)
    assert len(added) == 5
    paired = {claim.id for claim in BOOK.claims if any("paired(" in text for text in claim.criterion.expressions)}
    assert len(marks) == len(paired | set(added)) + 2, "and nothing else"


@pytest.mark.parametrize("claim", BOOK.claims, ids=lambda claim: claim.id)
def test_expressions_use_what_the_protocol_and_let_define(claim):
    known = set(BOOK.protocol.functions)
    arms = set(claim.arms)
    criterion = claim.criterion
    for name, expression in [*criterion.let.items(), ("holds", criterion.holds), ("fails", criterion.fails)]:
        for node in ast.walk(ast.parse(expression, mode="eval")):
            if isinstance(node, ast.Call):
                assert node.func.id in BOOK.protocol.functions
                if node.func.id in ("value", "diff", "ratio", "logratio", "paired"):
                    *used, metric = [argument.value for argument in node.args]
                    assert set(used) <= arms
                    assert metric in BOOK.protocol.metrics
            elif isinstance(node, ast.Name):
                assert node.id in known
        known.add(name)


def test_checks_belong_to_exact_claims():
    assert set(CHECKS) == {claim.id for claim in BOOK.claims if claim.kind == "exact"}
