"""claims.yaml matches the stored hash of its version, and all of its expressions are valid."""

import ast
import hashlib
import json
from importlib.resources import files

import pytest

from formerlab.evaluation.exact import CHECKS
from formerlab.report.claims.conditions import QUANTITIES
from formerlab.report.claims.quantity import BATCHES, MIN_UNITS, MONTE_CARLO_GUARD, POOL_CHECK
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.rows import POOL_FACTOR
from formerlab.report.claims.verdict import MIN_SEEDS
from formerlab.statistics import CONFIDENCE, RESAMPLES

REGISTRY = read_claims()
VERSION_HASHES = {
    1: "5f560fc9458713204c14d6ba8b93d91fc3e1ecdbe9f94377f55d3e6de06879f4",
    2: "1f43f7313e566f9a4dea2794ee2c9ba95ea55bdf00b214f838175a0a9deda929",
    3: "7b15ea056cdcb41ef844758179d366b539ef84ea247f7a75921c005fa92d4fa2",
    4: "3bab10e7f206d5af5edad4188cf404a0dbf30567509ccb0984a668fd92f938dd",
    5: "8dcbb055de39ed10c012e9c3f2823114414eed60b7994bb811726185b0508024",
    6: "5c4b3474f4007e243cb62b6164ccedb065b51211ad149f342c1af2d3e258728a",
    7: "43277890bf29866721c64bf3c26226866ab4381d552568b0a5f334407712b616",
}
"""SHA-256 of claims.yaml by its version. A correction raises the version and states which results were known then."""


def test_the_file_is_unchanged():
    content = files("formerlab.report.claims").joinpath("claims.yaml").read_bytes()
    assert hashlib.sha256(content).hexdigest() == VERSION_HASHES[REGISTRY.version]
    assert len(REGISTRY.claims) == 62
    assert sum(claim.headline for claim in REGISTRY.claims) == 10


ATTAINABLE = ("tokenformer-growth-saves-cost", "decay-score-beats-protected-random")
"""Claims that got a condition in version 7."""


def test_versions_6_and_7_changed_no_other_criterion():
    """The hash covers criteria, limits, scales and published numbers of version 5, except the claims in ATTAINABLE."""
    decisive = [
        [c.id, c.kind, c.headline, c.published, c.criterion.model_dump(), c.scales.judged, sorted(c.arms)]
        + [condition.model_dump() for condition in c.regime]
        for c in REGISTRY.claims
        if c.id not in ATTAINABLE
    ]
    digest = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()
    assert digest == "62b79ade3ea6fc2423e792345eb28313486031a8ca26f3cecb474db9c1f552b5"


def test_revisions_list_the_versions_that_changed_a_claim():
    marks = {claim.id: mark for claim in REGISTRY.claims if (mark := REGISTRY.revisions(claim))}
    statistics = "statistics changed in versions 3, 4"
    assert marks["tokenformer-continued-training-lower"] == f"criterion changed in versions 2, 3; {statistics}"
    assert marks["tokenformer-growth-gap-shrinks-with-stage"] == (
        "added in version 3; criterion changed in version 4; statistics changed in version 4"
    )
    statistics = "statistics changed in versions 2, 3"
    assert marks["decay-beats-h2o"] == f"criterion changed in version 3; {statistics}"
    assert marks["decay-mask-closer-to-ideal"] == f"criterion changed in versions 3, 4; {statistics}"
    assert {claim.id for claim in REGISTRY.claims if claim.id not in marks} == {
        c.id for c in REGISTRY.claims if c.kind == "exact"
    }


def test_constants_in_the_code_are_as_registered():
    protocol = REGISTRY.protocol
    assert (protocol["confidence"], protocol["min_seeds"], protocol["bootstrap_resamples"]) == (
        CONFIDENCE,
        MIN_SEEDS,
        RESAMPLES,
    )
    assert protocol["min_documents"] == protocol["min_examples"] == MIN_UNITS
    assert protocol["monte_carlo_guard"] == MONTE_CARLO_GUARD
    assert protocol["monte_carlo_batches"] == BATCHES
    assert (protocol["pool_check"], protocol["pool_factor"]) == (POOL_CHECK, POOL_FACTOR)


def test_every_quantity_of_a_regime_is_implemented():
    CONDITIONS_WITH_SEVERAL_ARMS = {"same_grid", "gain_of_depth"}
    for claim in REGISTRY.claims:
        for condition in claim.regime:
            assert ({condition.of} if isinstance(condition.of, str) else set(condition.of)) <= set(claim.arms)
            name = condition.quantity
            assert {name, name.removesuffix("_apart"), name.removesuffix("_ratio")} & {
                *QUANTITIES,
                *CONDITIONS_WITH_SEVERAL_ARMS,
            }


@pytest.mark.parametrize("claim", REGISTRY.claims, ids=lambda claim: claim.id)
def test_expressions_use_only_defined_names_and_functions(claim):
    defined_names = set(REGISTRY.protocol["functions"])
    arms = set(claim.arms)
    criterion = claim.criterion
    for name, expression in [*criterion.let.items(), ("holds", criterion.holds), ("fails", criterion.fails)]:
        for node in ast.walk(ast.parse(expression, mode="eval")):
            if isinstance(node, ast.Call):
                assert node.func.id in REGISTRY.protocol["functions"]
                if node.func.id in ("value", "diff", "ratio", "logratio", "paired", "correlation"):
                    *used, metric = [argument.value for argument in node.args]
                    assert set(used) <= arms
                    assert metric in REGISTRY.protocol["metrics"]
            elif isinstance(node, ast.Name):
                assert node.id in defined_names
        defined_names.add(name)


def test_every_exact_claim_has_a_check():
    assert set(CHECKS) == {claim.id for claim in REGISTRY.claims if claim.kind == "exact"}
