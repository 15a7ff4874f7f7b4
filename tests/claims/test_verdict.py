"""Verdicts on synthetic numbers: outcomes, combined items, p values and Holm's correction."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from formerlab.evaluation.exact import CHECKS
from formerlab.report.claims.quantity import Examples, MissingRowsError, RunMetric
from formerlab.report.claims.registry import Arm, Claim, ClaimArms, read_claims
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.claims.verdict import combine_outcomes, evaluate, evaluate_all, holm, p_value

REGISTRY = read_claims()


class SyntheticRows(ClaimRows):
    """Synthetic rows: numbers or answers by arm and metric."""

    def __init__(self, claim, numbers, examples=None):
        super().__init__(None, claim.study, ClaimArms(arms={name: Arm(run=name) for name in claim.arms}))
        self.numbers, self.answers = numbers, examples or {}

    def run_metric(self, arm, metric, *, logarithm=False):
        if (arm.run, metric) not in self.numbers:
            raise MissingRowsError(f"no finished run {arm.run}")
        return RunMetric(f"{metric} {arm.run}", pd.Series(self.numbers[arm.run, metric]))

    def load_examples(self, arm, metric, **more):
        if (values := self.answers.get((arm.run, metric))) is None:
            raise MissingRowsError(f"no finished run {arm.run}")
        group = np.stack([values, np.ones_like(values)], axis=-1)
        return Examples((group,), tuple(range(len(values))), {"task": tuple(map(str, range(values.shape[1])))})

    def cache_size(self, arm, metric):
        return 0.4


def claim_of(name) -> Claim:
    """Return a claim without its regime, which test_conditions.py tests."""
    return next(claim for claim in REGISTRY.claims if claim.id == name).model_copy(update={"regime": ()})


@pytest.fixture(autouse=True)
def without_runs(monkeypatch):
    monkeypatch.setattr("formerlab.report.claims.verdict.arm_runs", lambda *args: {})
    monkeypatch.setattr("formerlab.report.claims.verdict.model_sizes", lambda *args: "")


def evaluated(name, numbers=None, examples=None, scale="workstation"):
    claim = claim_of(name)
    return evaluate(claim, SyntheticRows(claim, numbers or {}, examples), {}, scale)


MATCHES = "tokenformer-progressive-matches-scratch"
SCRATCH = {("scratch", "loss_nats"): [3.0, 3.001, 3.0], ("scratch", "flops_cumulative"): [3.0] * 3}
CHEAP = SCRATCH | {("grown", "flops_cumulative"): [1.0] * 3}


def grown(*losses):
    return CHEAP | {("grown", "loss_nats"): list(losses)}


def test_the_four_outcomes():
    assert evaluated(MATCHES, grown(3.001, 3.0, 3.002)).outcome == "agrees"
    assert evaluated(MATCHES, grown(3.2, 3.21, 3.2)).outcome == "contradicts"
    assert evaluated(MATCHES, grown(3.3, 2.7, 3.0)).outcome == "cannot_tell"
    assert evaluated(MATCHES, {}).items[0].reason == "no finished run grown"


def test_untested_items_show_their_values_and_the_reason():
    two_seeds = {key: values[:2] for key, values in grown(3.001, 3.0, 3.002).items()}
    (item,) = evaluated(MATCHES, two_seeds).items
    assert (item.outcome, item.reason) == ("not_tested", "number of seeds: 2 (needed: at least 3)")
    assert item.texts["cost"].startswith("0.3333")
    (item,) = evaluated(MATCHES, grown(3.001, 3.0, 3.002), scale="laptop").items
    assert item.reason.startswith("scale laptop does not test the claim: ")


def test_two_ratios_of_one_claim_are_different_terms():
    losses = {"grown": [4.0, 2.1, 2.0], "scratch": [2.0, 1.0, 1.0]}
    claim, numbers = claim_of(MATCHES), {(arm, "loss_nats"): values for arm, values in losses.items()}
    apart = {"gap": "ratio('grown', 'scratch', 'loss_nats') - ratio('scratch', 'grown', 'loss_nats')"}
    criterion = claim.criterion.model_copy(update={"let": apart, "holds": "lo(gap) > 1", "fails": "hi(gap) < 1"})
    verdict = evaluate(
        claim.model_copy(update={"criterion": criterion}), SyntheticRows(claim, numbers), {}, "overnight"
    )
    assert verdict.outcome == "agrees"


def test_a_claim_is_not_tested_if_requires_is_false():
    full = np.ones((3, 400))
    lossless = {(arm, "accuracy"): full for arm in ("full", "h2o", "decay")}
    (item,) = evaluated("decay-beats-h2o", examples=lossless).items
    assert item.outcome == "not_tested"
    assert item.reason.endswith("requirement: H2O loses accuracy, and both caches have the same size")


@pytest.mark.parametrize(
    ("items", "by_all", "by_tested"),
    [
        (["agrees", "agrees"], "agrees", "agrees"),
        (["agrees", "cannot_tell"], "cannot_tell", "cannot_tell"),
        (["agrees", "not_tested"], "not_tested", "agrees"),
        (["contradicts", "not_tested"], "contradicts", "contradicts"),
        (["cannot_tell", "not_tested"], "not_tested", "cannot_tell"),
        (["not_tested", "not_tested"], "not_tested", "not_tested"),
    ],
)
def test_outcomes_of_items_are_combined(items, by_all, by_tested):
    assert (combine_outcomes(items, "all"), combine_outcomes(items, "tested")) == (by_all, by_tested)
    assert combine_outcomes(["holds", "fails"], "all") == "fails"


def test_an_item_counts_the_seeds_of_its_interval():
    """The short runs have five seeds and the long runs three, so their gaps are compared over three seeds."""
    losses = {"tokenformer_short": [4.3] * 5, "transformer_short": [4.2] * 5}
    losses |= {"tokenformer_long": [4.0, 4.01, 4.0], "transformer_long": [4.1] * 3}
    numbers = {(arm, "loss_nats"): values for arm, values in losses.items()}
    assert evaluated("tokenformer-gap-shrinks-with-training", numbers, scale="overnight").items[0].seeds == 3


def random_answers(accuracy, seed, seeds=3):
    return (np.random.default_rng(seed).random((seeds, 400)) < accuracy).astype(float)


def policies(h2o, decay):
    return {("full", "accuracy"): np.ones((3, 400)), ("h2o", "accuracy"): h2o, ("decay", "accuracy"): decay}


def test_policies_are_compared_over_the_same_examples():
    claim, worse, better = "decay-beats-h2o", random_answers(0.6, 1), random_answers(0.85, 2)
    verdict = evaluated(claim, examples=policies(worse, better))
    assert verdict.outcome == "agrees"
    exact = (better - worse).mean()
    assert verdict.items[0].texts["effect"].startswith(f"{exact:.4f} ["), "the text shows the point estimate"
    assert evaluated(claim, examples=policies(better, worse)).outcome == "contradicts"
    assert evaluated(claim, examples=policies(worse, worse)).items[0].texts["effect"] == "0 [0, 0]"
    (item,) = evaluated(claim, examples=policies(worse, better[:, :300])).items
    assert item.reason == "the arms have rows of different examples"


def test_p_is_the_significance_level_at_which_the_claim_stops_holding():
    """For one sample, the p value of `hi <= limit` is the two-sided p value of the t test."""
    claim = claim_of("tokenformer-growth-equal-total-flops")
    gaps = np.array([-0.03, -0.01, -0.05])
    numbers = {("grown", "loss_nats"): list(3 + gaps), ("scratch", "loss_nats"): [3.0] * 3}
    rows = SyntheticRows(claim, numbers)
    p = p_value(evaluate(claim, rows, {}, "overnight"), rows)
    assert claim.criterion.holds == "hi(gap) <= 0.02"
    assert p == pytest.approx(stats.ttest_1samp(gaps, 0.02).pvalue, abs=2e-4)
    without_rows = SyntheticRows(claim, {})
    assert p_value(evaluate(claim, without_rows, {}, "overnight"), without_rows) == 1.0


def test_holm_is_a_step_down_correction():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}


def test_holms_family_is_the_headline_claims_with_a_verdict():
    names = ("tokenformer-growth-equal-total-flops", "decay-beats-h2o", "denseformer-better-at-equal-time")
    numbers, examples = grown(3.001, 3.0, 3.002), policies(random_answers(0.6, 1), random_answers(0.85, 2))
    claims = [claim_of(name) for name in names]
    rows = {claim.id: SyntheticRows(claim, numbers, examples) for claim in claims}
    all_three, single_claim = (
        evaluate_all(claims, "workstation", rows, {}),
        evaluate_all(claims[1:2], "workstation", rows, {}),
    )
    assert [verdict.outcome for verdict in all_three] == ["agrees", "agrees", "not_tested"]
    assert all_three[2].holm_p is None
    assert all_three[1].holm_p == pytest.approx(2 * single_claim[0].holm_p)


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("tokenformer-flops-formula", "holds"),
        ("transformer-sinusoid-linear-shift", "holds"),
        ("tokenformer-zero-keys-kept-tau", "holds"),
        ("tokenformer-zero-keys-default-tau", "fails"),
    ],
)
def test_checks_compute_the_numbers_of_their_criteria(name, outcome):
    claim = next(claim for claim in REGISTRY.claims if claim.id == name)
    assert evaluate(claim, None, CHECKS[name](), "smoke").outcome == outcome
    assert evaluate(claim, None, {}, "smoke").outcome == "not_tested"


def test_table_1_holds_and_other_conventions_of_cost_and_path_length_give_known_constants():
    claim = next(claim for claim in REGISTRY.claims if claim.id == "transformer-complexity-table1")
    numbers = CHECKS[claim.id]()
    assert evaluate(claim, None, numbers, "smoke").outcome == "holds"
    assert numbers["slope:self_attention_with_projections:n"] == pytest.approx(1, abs=0.15)
    assert numbers["path_contiguous_kernels_times_k_over_n"] == pytest.approx(1.5, abs=0.05)
    assert numbers["path_centred_neighbourhood_times_r_over_n"] == pytest.approx(2, abs=0.05)
