"""Planted effects give `holds`, opposite ones `fails`, noise `undecided`, missing arms `not judged`."""

from dataclasses import replace

import numpy as np
import pytest

from formerlab.errors import UserError
from formerlab.evaluation.translation.bleu import corpus_bleu
from formerlab.report.claims.arms import Arm, ClaimArms
from formerlab.report.claims.bootstrap import Examples, paired_difference
from formerlab.report.claims.evidence import Evidence
from formerlab.report.claims.quantity import MissingRowsError, Seeds
from formerlab.report.claims.registry import Claim, read_claims
from formerlab.report.claims.verdict import holm, judge, judge_all, p_value, standing
from formerlab.statistics import resampled

BOOK = read_claims()


class Planted:
    """Rows that are made up: numbers per arm, item and metric."""

    def __init__(self, claim, numbers, examples=None, constants=None):
        constants = constants or {}
        arms = {name: Arm(constant=constants[name]) if name in constants else Arm(run=name) for name in claim.arms}
        self.arms = ClaimArms(arms={name: arm for name, arm in arms.items()})
        self.numbers, self.planted, self.used = numbers, examples or {}, set()

    def value(self, arm, metric):
        if (arm.run, metric) not in self.numbers:
            raise MissingRowsError(f"no finished run {arm.run}")
        return Seeds(dict(enumerate(self.numbers[arm.run, metric])))

    def examples(self, arm, metric, like=None):
        if arm.constant is not None:
            return replace(like, groups=tuple(np.full_like(group, arm.constant) for group in like.groups))
        if (arm.run, metric) not in self.planted:
            raise MissingRowsError(f"no finished run {arm.run}")
        return answered(self.planted[arm.run, metric])

    def realised_budget(self, arm, metric):
        return 0.4


def answered(*groups, seeds=None, **more):
    """Examples of tasks; each group is seeds x examples."""
    names = {f"task{place}": tuple(map(str, range(group.shape[1]))) for place, group in enumerate(groups)}
    seeds = tuple(range(len(groups[0]))) if seeds is None else seeds
    return Examples(tuple(group.reshape(*group.shape[:2], -1) for group in groups), seeds, names, **more)


def claim_of(name) -> Claim:
    return next(claim for claim in BOOK.claims if claim.id == name)


def outcome(name, numbers=None, examples=None, scale="workstation", constants=None):
    claim = claim_of(name)
    return judge(evidence(claim, Planted(claim, numbers or {}, examples, constants)), scale).outcome


def evidence(claim, rows, numbers=None):
    return Evidence(claim, BOOK.protocol, rows, numbers or {})


LOSSES = {("grown", "loss_nats"): [3.001, 3.0, 3.002], ("scratch", "loss_nats"): [3.0, 3.001, 3.0]}
CHEAP = {("grown", "flops_cumulative"): [1.0] * 3, ("scratch", "flops_cumulative"): [3.0] * 3}
WORSE = {("grown", "loss_nats"): [3.2, 3.21, 3.2], ("scratch", "loss_nats"): [3.0, 3.0, 3.0]}
NOISY = {("grown", "loss_nats"): [3.3, 2.7, 3.0], ("scratch", "loss_nats"): [3.0, 3.0, 3.0]}


def test_as_good_as_at_half_the_cost():
    claim = "tokenformer-progressive-matches-scratch"
    assert outcome(claim, LOSSES | CHEAP) == "holds"
    assert outcome(claim, WORSE | CHEAP) == "fails"
    assert outcome(claim, NOISY | CHEAP) == "undecided"
    assert outcome(claim, {}) == "not judged"
    two = {key: values[:2] for key, values in (LOSSES | CHEAP).items()}
    assert outcome(claim, two) == "undecided", "two seeds are too few"


def test_every_item_counts():
    claim = "denseformer-better-at-equal-depth"
    better = {("plain", "loss_nats"): [3.2, 3.21, 3.2], ("dense", "loss_nats"): [3.0, 3.0, 3.01]}
    assert outcome(claim, better) == "holds"
    assert outcome(claim, {("plain", "loss_nats"): [3.0] * 3, ("dense", "loss_nats"): [3.2, 3.21, 3.2]}) == "fails"


def test_an_item_names_the_runs_that_it_compares():
    better = {("plain", "loss_nats"): [3.2, 3.21, 3.2], ("dense", "loss_nats"): [3.0, 3.0, 3.01]}
    claim = claim_of("denseformer-better-at-equal-depth")
    verdict = judge(evidence(claim, Planted(claim, better)), "workstation")
    assert {item.runs for item in verdict.items} == {("dense", "plain")}


def test_the_seeds_are_counted_over_which_the_interval_goes():
    """The short runs have five, the long ones three: their gaps are compared over three."""
    short = {
        ("tokenformer_short", "loss_nats"): [4.3, 4.31, 4.3, 4.29, 4.3],
        ("transformer_short", "loss_nats"): [4.2] * 5,
    }
    long = {("tokenformer_long", "loss_nats"): [4.0, 4.01, 4.0], ("transformer_long", "loss_nats"): [4.1] * 3}
    claim = claim_of("tokenformer-gap-shrinks-with-training")
    assert judge(evidence(claim, Planted(claim, short | long)), "overnight").seeds == 3


def kept(share, seed, seeds=3):
    return (np.random.default_rng(seed).random((seeds, 400)) < share).astype(float)


def test_a_paired_bootstrap_decides_between_policies():
    claim = "decay-beats-h2o"
    full = np.ones((3, 400))
    arms = {("full", "accuracy"): full, ("h2o", "accuracy"): kept(0.6, 1), ("decay", "accuracy"): kept(0.85, 2)}
    assert outcome(claim, examples=arms) == "holds"
    swapped = arms | {("h2o", "accuracy"): kept(0.85, 2), ("decay", "accuracy"): kept(0.6, 1)}
    assert outcome(claim, examples=swapped) == "fails"
    same = arms | {("decay", "accuracy"): kept(0.63, 5)}
    assert outcome(claim, examples=same) == "undecided"
    lossless = arms | {("h2o", "accuracy"): full, ("decay", "accuracy"): full}
    assert outcome(claim, examples=lossless) == "undecided", "without a loss by pruning nothing can be won back"


def test_bootstrap_replicates_are_paired():
    """The difference of an arm and itself is zero in every replicate."""
    claim = claim_of("decay-beats-h2o")
    same = kept(0.7, 3)
    planted = {(arm, "accuracy"): same for arm in ("decay", "h2o")} | {("full", "accuracy"): np.ones((3, 400))}
    verdict = judge(evidence(claim, Planted(claim, {}, planted)), "workstation")
    assert verdict.items[0].values["effect"] == "0 [0, 0]"


def test_what_is_printed_is_the_point_estimate():
    """Not the mean of the replicates, which differs in the third digit."""
    claim, arms = claim_of("decay-best-alpha-depends-on-task"), {("own", "accuracy"): kept(0.7, 1)}
    arms |= {("common", "accuracy"): kept(0.6, 2)}
    verdict = judge(evidence(claim, Planted(claim, {}, arms)), "workstation")
    exact = (arms["own", "accuracy"] - arms["common", "accuracy"]).mean()
    assert verdict.items[0].values["effect"].startswith(f"{exact:.4f} [")


def test_three_seeds_that_agree_in_sign_are_not_enough():
    """Two seeds near zero and one far away: resampled seeds exclude zero, Student's t does not."""
    of_seeds = np.array([0.001, 0.002, 0.05])[:, None] + np.zeros((3, 200))
    found = paired_difference(answered(of_seeds), answered(np.zeros((3, 200))), 200).interval(0.95)
    assert found.low < 0 < found.high


def test_tasks_of_different_size_count_alike():
    """Two tasks whose differences depend on the seed alone, and cancel: so they do in every replicate."""
    by_seed = np.array([0.1, -0.3, 0.5])[:, None]
    sizes = (3, 300_000)  # the second is resampled in chunks
    groups = (np.tile(by_seed, (1, sizes[0])), np.tile(-by_seed, (1, sizes[1])))
    found = paired_difference(answered(*groups), answered(*(np.zeros_like(group) for group in groups)), 20)
    assert np.abs(found.replicates).max() < 1e-12
    assert found.of_seeds == pytest.approx({0: 0.0, 1: 0.0, 2: 0.0})
    assert found.examples == sum(sizes)


def test_seeds_that_both_arms_have_are_compared():
    a = answered(np.arange(3.0)[:, None] + np.zeros((3, 5)), seeds=(0, 1, 2))
    b = answered(np.zeros((2, 5)), seeds=(2, 7))
    assert paired_difference(a, b, 10).of_seeds == {2: 2.0}
    with pytest.raises(MissingRowsError, match="no seed in common"):
        paired_difference(a, answered(np.zeros((1, 5)), seeds=(7,)), 10)


def test_other_questions_are_not_compared():
    a = answered(np.zeros((3, 5)))
    with pytest.raises(MissingRowsError, match="different examples"):
        paired_difference(a, replace(a, names={"task0": tuple("abcde")}), 10)


def test_a_corpus_score_is_computed_again_on_every_resample():
    """With sums: a mean of counts would smooth an order without a match by another number."""
    sentences = np.random.default_rng(1).integers(0, 3, (2, 1, 12, 10)).astype(float)
    sentences[..., 4:8] = 4
    sentences[..., 3] = 0  # no match of order 4
    sentences[..., 8:] = 9
    of, other = (answered(one, reduce=lambda sums, _: corpus_bleu(sums)) for one in sentences)
    found = paired_difference(of, other, 50)
    point = [float(corpus_bleu(one[0].sum(axis=0))) for one in sentences]
    assert found.of_seeds[0] == pytest.approx(point[0] - point[1])
    ((_, drawn),) = resampled(12, 50)
    expected = [corpus_bleu(drawn @ one[0]) for one in sentences]
    np.testing.assert_allclose(found.replicates, expected[0] - expected[1])


def test_levels_of_confidence_share_one_bootstrap(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "formerlab.report.claims.evidence.paired_difference",
        lambda *given: calls.append(1) or paired_difference(*given),
    )
    claim = claim_of("decay-beats-h2o")
    planted = {(arm, "accuracy"): kept(share, 1) for arm, share in (("full", 1.0), ("h2o", 0.6), ("decay", 0.9))}
    shared = evidence(claim, Planted(claim, {}, planted))
    assert judge(shared, "workstation").outcome == "holds"
    before = len(calls)
    assert 0 < p_value(shared) < 0.05
    assert len(calls) == before == 2


def test_standing_follows_the_scale():
    claim = claim_of("decay-mask-closer-to-ideal")
    rows = Planted(claim, {})
    standings = {s: judge(evidence(claim, rows), s).standing for s in ("smoke", "laptop", "overnight")}
    assert standings == {"smoke": "indicative", "laptop": "judged", "overnight": "judged"}
    standings = {name: standing(claim_of("decay-beats-h2o"), name) for name in ("laptop", "overnight", "pretrained")}
    assert standings == {"laptop": "indicative", "overnight": "provisional", "pretrained": "judged"}
    assert standing(claim_of("decay-best-alpha-depends-on-task"), "pretrained") == "indicative"
    assert standing(claim_of("decay-half-recent-beats-h2o"), "overnight") == "judged", "it names the scale"
    assert standing(claim_of("transformer-parameter-counts"), "pretrained") == "judged", "arithmetic is the same"


def test_a_withdrawn_claim_has_no_verdict_no_numbers_and_no_p():
    claims = [claim_of(name) for name in ("tokenformer-growth-equal-total-flops", "decay-beats-h2o")]
    full = np.ones((3, 400))
    arms = {("full", "accuracy"): full, ("h2o", "accuracy"): kept(0.6, 1), ("decay", "accuracy"): kept(0.85, 2)}

    def found(withdrawn):
        rows = {claim.id: Planted(claim, LOSSES, arms) for claim in claims}
        return judge_all(claims, BOOK.protocol, "workstation", lambda c: rows[c.id], lambda _: {}, withdrawn)

    both, one = found({}), found({claims[0].id: "its rows are not what they seemed"})
    assert [verdict.outcome for verdict in both] == ["holds", "holds"]
    assert [verdict.outcome for verdict in one] == ["withdrawn", "holds"]
    assert (one[0].items[0].values, one[0].holm_p) == ({}, None)
    assert both[1].holm_p > one[1].holm_p, "what is withdrawn does not count in Holm's correction"


def test_an_exact_claim_is_decided_by_its_numbers():
    claim = claim_of("tokenformer-zero-keys-kept-tau")
    names = ("growth_zero_keys_tau_keep_relative", "gradient_norm_new_keys")
    for numbers, expected in (((0.0, 1.0), "holds"), ((1e-3, 1.0), "fails"), ((0.0, 0.0), "fails")):
        verdict = judge(evidence(claim, None, dict(zip(names, numbers, strict=True))), "smoke")
        assert verdict.outcome == expected
    assert judge(evidence(claim, None), "smoke").outcome == "not judged"


def test_p_is_where_the_claim_stops_to_hold():
    """With a t statistic of one sample the p of `lo > 0` is the two-sided p of the t test."""
    from scipy import stats

    claim = claim_of("tokenformer-growth-equal-total-flops")
    gaps = np.array([-0.03, -0.01, -0.05])
    numbers = {("grown", "loss_nats"): list(3 + gaps), ("scratch", "loss_nats"): [3.0, 3.0, 3.0]}
    p = p_value(evidence(claim, Planted(claim, numbers)))
    assert p is not None
    assert 0 < p < 1
    limit = BOOK.protocol.equivalence_nats
    assert "hi(gap)" in claim.criterion.holds
    if claim.criterion.holds == f"hi(gap) <= {limit}":
        assert p == pytest.approx(stats.ttest_1samp(gaps, limit).pvalue, abs=2e-4)


def test_p_of_a_paired_claim_is_that_of_its_interval():
    """At level 1 - p the lower end is zero: Satterthwaite's t test of mean and standard error."""
    from scipy import stats

    claim = claim_of("decay-half-recent-beats-h2o")
    effect = np.random.default_rng(6).normal([[0.02], [0.06], [0.05]], 0.1, (3, 60))
    arms = {("h2o", "loss_nats"): effect, ("split", "loss_nats"): np.zeros((3, 60))}
    shared = evidence(claim, Planted(claim, {}, arms))
    p, found = p_value(shared), shared.paired("budget_10_percent", "h2o", "split", "loss_nats")
    between, within = stats.sem(effect.mean(axis=1)) ** 2, found.replicates.var()
    freedom = (between + within) ** 2 / (between**2 / 2 + within**2 / 59)
    assert p == pytest.approx(2 * stats.t(freedom).sf(effect.mean() / np.sqrt(between + within)), abs=2e-4)
    assert 0.01 < p < 0.3


def test_holm_steps_down():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}


def test_unknown_arms_and_metrics_name_the_claim():
    claim = claim_of("tokenformer-growth-equal-total-flops")
    broken = claim.model_copy(
        update={"criterion": claim.criterion.model_copy(update={"let": {"gap": "diff('x', 'scratch', 'loss_nats')"}})}
    )
    with pytest.raises(UserError, match=r"tokenformer-growth-equal-total-flops: unknown arm 'x'"):
        judge(evidence(broken, Planted(claim, LOSSES)), "workstation")
