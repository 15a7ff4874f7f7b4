"""Verdicts by made-up numbers: the words, what items come to, p and Holm's correction."""

import numpy as np
import pytest
from scipy import stats

from formerlab.errors import UserError
from formerlab.evaluation.exact import CHECKS
from formerlab.report.claims.bootstrap import Examples
from formerlab.report.claims.judgement import Evidence, evaluate
from formerlab.report.claims.quantity import Level, MissingRowsError
from formerlab.report.claims.registry import Arm, Claim, ClaimArms, read_claims
from formerlab.report.claims.verdict import combined, holm, judge, judge_all, p_value

BOOK = read_claims()


class Planted:
    """Rows that are made up: numbers per arm, item and metric."""

    def __init__(self, claim, numbers, examples=None):
        arms = {name: Arm(run=name) for name in claim.arms}
        self.arms, self.numbers, self.planted, self.used = ClaimArms(arms=arms), numbers, examples or {}, set()

    def level(self, arm, metric, *, logarithm=False):
        if (arm.run, metric) not in self.numbers:
            raise MissingRowsError(f"no finished run {arm.run}")
        return Level(f"{metric} {arm.run}", dict(enumerate(self.numbers[arm.run, metric])))

    def sample(self, arm, metric, **more):
        values = self.planted[arm.run, metric]
        group = np.stack([values, np.ones_like(values)], axis=-1)
        return Examples((group,), tuple(range(len(values))), {"task": tuple(map(str, range(values.shape[1])))})

    def realised_budget(self, arm, metric):
        return 0.4


def claim_of(name) -> Claim:
    """A claim without its regime, which test_regime.py has."""
    return next(claim for claim in BOOK.claims if claim.id == name).model_copy(update={"regime": ()})


def evidence(claim, rows, numbers=None):
    return Evidence(claim, BOOK.protocol, rows, numbers or {})


@pytest.fixture(autouse=True)
def without_sizes(monkeypatch):
    monkeypatch.setattr("formerlab.report.claims.verdict.sizes", lambda judgement: "")
    monkeypatch.setattr("formerlab.report.claims.verdict.unmet", lambda judgement: [])


def judged(name, numbers=None, examples=None, scale="workstation"):
    claim = claim_of(name)
    return judge(evidence(claim, Planted(claim, numbers or {}, examples)), scale)


MATCHES = "tokenformer-progressive-matches-scratch"
SCRATCH = {("scratch", "loss_nats"): [3.0, 3.001, 3.0], ("scratch", "flops_cumulative"): [3.0] * 3}
CHEAP = SCRATCH | {("grown", "flops_cumulative"): [1.0] * 3}


def grown(*losses):
    return CHEAP | {("grown", "loss_nats"): list(losses)}


def test_the_four_words():
    assert judged(MATCHES, grown(3.001, 3.0, 3.002)).outcome == "agrees"
    assert judged(MATCHES, grown(3.2, 3.21, 3.2)).outcome == "contradicts"
    assert judged(MATCHES, grown(3.3, 2.7, 3.0)).outcome == "cannot_tell"
    assert judged(MATCHES, {}).items[0].reason == "no finished run grown"


def test_rows_that_decide_nothing_are_shown_with_the_reason():
    two = {key: values[:2] for key, values in grown(3.001, 3.0, 3.002).items()}
    (item,) = judged(MATCHES, two).items
    assert (item.outcome, item.reason) == ("not_tested", "2 seeds of 3")
    assert item.values["cost"].startswith("0.3333")
    (item,) = judged(MATCHES, grown(3.001, 3.0, 3.002), scale="laptop").items
    assert item.reason.startswith("scale laptop decides nothing here: ")


def test_what_a_claim_requires_is_not_met():
    full = np.ones((3, 400))
    lossless = {(arm, "accuracy"): full for arm in ("full", "h2o", "decay")}
    (item,) = judged("decay-beats-h2o", examples=lossless).items
    assert item.outcome == "not_tested"
    assert item.reason.startswith("requires lo(paired('full', 'h2o', 'accuracy')) > 0")


def test_conditions_off_the_regime_are_the_reason(monkeypatch):
    monkeypatch.setattr("formerlab.report.claims.verdict.unmet", lambda judgement: ["heads 4", "tokens 3"])
    (item,) = judged(MATCHES, grown(3.2, 3.21, 3.2)).items
    assert (item.outcome, item.reason) == ("not_tested", "heads 4; tokens 3")


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
def test_what_items_come_to(items, by_all, by_tested):
    assert (combined(items, "all"), combined(items, "tested")) == (by_all, by_tested)
    assert combined(["holds", "fails"], "all") == "fails"


def test_the_seeds_are_counted_over_which_the_interval_goes():
    """The short runs have five, the long ones three: their gaps are compared over three."""
    losses = {"tokenformer_short": [4.3] * 5, "transformer_short": [4.2] * 5}
    losses |= {"tokenformer_long": [4.0, 4.01, 4.0], "transformer_long": [4.1] * 3}
    numbers = {(arm, "loss_nats"): values for arm, values in losses.items()}
    assert judged("tokenformer-gap-shrinks-with-training", numbers, scale="overnight").seeds == 3


def kept(share, seed, seeds=3):
    return (np.random.default_rng(seed).random((seeds, 400)) < share).astype(float)


def policies(h2o, decay):
    return {("full", "accuracy"): np.ones((3, 400)), ("h2o", "accuracy"): h2o, ("decay", "accuracy"): decay}


def test_policies_are_compared_over_the_same_examples():
    claim = "decay-beats-h2o"
    assert judged(claim, examples=policies(kept(0.6, 1), kept(0.85, 2))).outcome == "agrees"
    assert judged(claim, examples=policies(kept(0.85, 2), kept(0.6, 1))).outcome == "contradicts"
    same = judged(claim, examples=policies(kept(0.7, 3), kept(0.7, 3)))
    assert same.items[0].values["effect"] == "0 [0, 0]"
    exact = (kept(0.85, 2) - kept(0.6, 1)).mean()
    found = judged(claim, examples=policies(kept(0.6, 1), kept(0.85, 2)))
    assert found.items[0].values["effect"].startswith(f"{exact:.4f} ["), "the point estimate, not that of replicates"


def test_other_examples_are_not_compared():
    (item,) = judged("decay-beats-h2o", examples=policies(kept(0.6, 1), kept(0.85, 2)[:, :300])).items
    assert item.reason == "decay and h2o: the arms have rows of different examples"


def test_an_exact_claim_is_decided_by_its_numbers():
    claim = claim_of("tokenformer-zero-keys-kept-tau")
    names = ("growth_zero_keys_tau_keep_relative", "gradient_norm_new_keys")
    for numbers, expected in (((0.0, 1.0), "holds"), ((1e-3, 1.0), "fails"), ((0.0, 0.0), "fails")):
        verdict = judge(evidence(claim, None, dict(zip(names, numbers, strict=True))), "smoke")
        assert verdict.outcome == expected
    assert judge(evidence(claim, None), "smoke").outcome == "not_tested"


def test_p_is_where_the_claim_stops_to_hold():
    """With a t statistic of one sample the p of `hi <= limit` is the two-sided p of the t test."""
    claim = claim_of("tokenformer-growth-equal-total-flops")
    gaps = np.array([-0.03, -0.01, -0.05])
    numbers = {("grown", "loss_nats"): list(3 + gaps), ("scratch", "loss_nats"): [3.0] * 3}
    shared = evidence(claim, Planted(claim, numbers))
    p = p_value(shared, judge(shared, "overnight"))
    assert claim.criterion.holds == "hi(gap) <= 0.02"
    assert p == pytest.approx(stats.ttest_1samp(gaps, 0.02).pvalue, abs=2e-4)


def test_holm_steps_down():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}


def test_the_family_of_holm_is_the_headline_claims_with_a_verdict():
    names = ("tokenformer-growth-equal-total-flops", "decay-beats-h2o", "denseformer-better-at-equal-time")
    claims = [claim_of(name) for name in names]

    def found(withdrawn):
        numbers, examples = grown(3.001, 3.0, 3.002), policies(kept(0.6, 1), kept(0.85, 2))
        rows = {claim.id: Planted(claim, numbers, examples) for claim in claims}
        return judge_all(claims, BOOK.protocol, "workstation", lambda c: rows[c.id], {}, withdrawn)

    both, one = found({}), found({names[0]: "its rows are not what they seemed"})
    assert [verdict.outcome for verdict in both] == ["agrees", "agrees", "not_tested"]
    assert both[2].holm_p is None
    assert (one[0].items[0].values, one[0].holm_p) == ({}, None)
    assert one[0].items[0].reason == "withdrawn: its rows are not what they seemed"
    assert both[1].holm_p == pytest.approx(2 * one[1].holm_p)


def test_unknown_arms_and_metrics_name_the_claim():
    claim = claim_of("tokenformer-growth-equal-total-flops")
    for let, message in (
        ("diff('x', 'scratch', 'loss_nats')", "unknown arm 'x'"),
        ("value('grown', 'y')", "metric 'y'"),
    ):
        criterion = claim.criterion.model_copy(update={"let": {"gap": let}})
        broken = claim.model_copy(update={"criterion": criterion})
        with pytest.raises(UserError, match=f"{claim.id}: .*{message}"):
            judge(evidence(broken, Planted(claim, grown(3, 3, 3))), "workstation")


def computed(expression, **names):
    return evaluate(expression, names, {"abs": abs, "max": max}, "some-claim")


def test_arithmetic_and_logic_are_those_of_python():
    assert computed("8 * 12 * 3600 * 9.5e12") == 8 * 12 * 3600 * 9.5e12
    assert computed("abs(a / 3 - 1) <= 0.5 and not b > 2", a=4.0, b=1.0)
    assert not computed("0 < a < 1 or max(a, b) == 0", a=2.0, b=-1.0)
    assert computed("-a + 1", a=3) == -2


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("gap", "'gap' is not defined"),
        ("open('x')", "Function 'open' not defined"),
        ("a.real", "Attribute"),
        ("[a]", "List"),
        ("(lambda: 1)()", "Lambda"),
        ("a if a else a", "IfExp"),
        ("a ** a", "Pow"),
        ("abs(x=1)", "keyword is not available"),
        ("a <", "invalid syntax"),
    ],
)
def test_all_else_is_refused_with_the_id_of_the_claim(expression, message):
    with pytest.raises(UserError, match=r"^some-claim: ") as error:
        computed(expression, a=1.0)
    assert message in str(error.value)


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
    verdict = judge(evidence(claim, None, CHECKS[name]()), "smoke")
    assert verdict.outcome == outcome, verdict.items


def test_the_traps_of_table_1_are_counted_too():
    numbers = CHECKS["transformer-complexity-table1"]()
    assert numbers["slope:self_attention_with_projections:n"] == pytest.approx(1, abs=0.15)
    assert numbers["path_contiguous_kernels_times_k_over_n"] == pytest.approx(1.5, abs=0.05)
    assert numbers["path_centred_neighbourhood_times_r_over_n"] == pytest.approx(2, abs=0.05)
