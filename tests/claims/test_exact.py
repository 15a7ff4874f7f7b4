"""The checks of the exact claims: those that are quick, and what their criteria say of them."""

import pytest

from formerlab.evaluation.exact import CHECKS
from formerlab.report.claims.judgement import Evidence
from formerlab.report.claims.registry import read_claims
from formerlab.report.claims.verdict import judge

BOOK = read_claims()


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("transformer-complexity-table1", "holds"),
        ("tokenformer-flops-formula", "holds"),
        ("tokenformer-zero-keys-kept-tau", "holds"),
        ("tokenformer-zero-keys-default-tau", "fails"),
    ],
)
def test_a_check_gives_what_its_criterion_needs(name, outcome):
    claim = next(claim for claim in BOOK.claims if claim.id == name)
    verdict = judge(Evidence(claim, BOOK.protocol, None, CHECKS[name]()), "smoke")
    assert verdict.outcome == outcome, verdict.items


def test_the_traps_of_table_1_are_counted_too():
    numbers = CHECKS["transformer-complexity-table1"]()
    assert numbers["slope:self_attention_with_projections:n"] == pytest.approx(1, abs=0.15)
    assert numbers["path_contiguous_kernels_times_k_over_n"] == pytest.approx(1.5, abs=0.05)
    assert numbers["path_centred_neighbourhood_times_r_over_n"] == pytest.approx(2, abs=0.05)
