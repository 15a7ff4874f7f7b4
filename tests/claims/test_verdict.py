"""Planted effects give `holds`, opposite ones `fails`, noise `undecided`, missing arms `not judged`."""

import numpy as np
import pytest

from formerlab.claims.arms import Arm, ClaimArms
from formerlab.claims.book import Claim, read_claims
from formerlab.claims.bootstrap import Examples, paired_replicates
from formerlab.claims.evidence import Evidence
from formerlab.claims.quantity import Seeds
from formerlab.claims.rows import MissingRowsError
from formerlab.claims.verdict import holm, judge, p_value
from formerlab.errors import UserError

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
            return Examples(tuple(np.full_like(group, arm.constant) for group in like.groups))
        if (arm.run, metric) not in self.planted:
            raise MissingRowsError(f"no finished run {arm.run}")
        return Examples((self.planted[arm.run, metric][:, :, None],))

    def realised_budget(self, arm):
        return 0.4


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


def test_tasks_of_different_size_share_the_draw_of_seeds():
    """Two tasks whose differences depend on the seed alone, and cancel: so do they in every replicate."""
    by_seed = np.array([0.1, -0.3, 0.5])[:, None, None]
    sizes = (3, 300_000)  # the second is resampled in chunks
    groups = (np.tile(by_seed, (1, sizes[0], 1)), np.tile(-by_seed, (1, sizes[1], 1)))
    other = Examples(tuple(np.zeros_like(group) for group in groups))
    assert np.abs(paired_replicates(Examples(groups), other, 20).values).max() < 1e-12


def test_levels_of_confidence_share_one_bootstrap(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "formerlab.claims.evidence.paired_replicates", lambda *given: calls.append(1) or paired_replicates(*given)
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
    other = claim_of("decay-beats-h2o")
    assert judge(evidence(other, Planted(other, {})), "overnight").standing == "provisional"


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


def test_holm_steps_down():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}


def test_unknown_arms_and_metrics_name_the_claim():
    claim = claim_of("tokenformer-growth-equal-total-flops")
    broken = claim.model_copy(
        update={"criterion": claim.criterion.model_copy(update={"let": {"gap": "diff('x', 'scratch', 'loss_nats')"}})}
    )
    with pytest.raises(UserError, match=r"tokenformer-growth-equal-total-flops: unknown arm 'x'"):
        judge(evidence(broken, Planted(claim, LOSSES)), "workstation")
