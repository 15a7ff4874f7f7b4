"""FLOPs that models trained from scratch need to reach a loss, on envelopes with known values."""

import math

import numpy as np
import pandas as pd
import pytest
from fixtures.rows import NOVELS, make_run
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from formerlab.report.claims.envelope import SAME_BUDGET, envelope_variance, flops_at_loss, on_envelope
from formerlab.report.claims.registry import Arm, ClaimArms, read_claims
from formerlab.report.claims.rows import ClaimRows
from formerlab.report.claims.verdict import evaluate
from formerlab.results.read import Results

runs = st.lists(st.tuples(st.floats(1e9, 1e15), st.floats(1.0, 8.0)), min_size=1, max_size=12, unique=True)


@given(st.floats(0.02, 0.5), st.floats(1e9, 1e20), st.floats(0.05, 0.95))
def test_flops_of_a_power_law_are_recovered(exponent, scale, fraction):
    """If the loss is a power law of the FLOPs, flops_at_loss inverts the law at every loss between the ends."""
    flops = scale * np.array([1.0, 3.0, 10.0, 50.0])
    target_flops = scale * 50**fraction
    flops_of_loss = flops_at_loss(4 * (target_flops / scale) ** -exponent, flops, 4 * (flops / scale) ** -exponent)
    assert flops_of_loss == pytest.approx(target_flops, rel=1e-9)


def test_extrapolation_continues_a_power_law():
    flops, losses = np.array([1.0, 3.0, 10.0]), 4 * np.array([1.0, 3.0, 10.0]) ** -0.1
    for target in (0.5, 10.0, 30.0):
        assert flops_at_loss(4 * target**-0.1, flops, losses, extrapolate=True) == pytest.approx(target)
    assert math.isnan(flops_at_loss(3.0, flops[:1], losses[:1], extrapolate=True)), "one run has no slope"


@given(runs)
def test_the_envelope_is_at_most_as_expensive_as_its_runs(points):
    flops, losses = (np.array(column) for column in zip(*points, strict=True))
    indices = on_envelope(flops, losses)
    for loss in losses:
        needed = flops_at_loss(loss, flops, losses)
        # the result is NaN exactly if the cheapest run on the envelope has a lower loss
        assert math.isnan(needed) == (loss > losses[indices[0]])
        enough = flops[indices][losses[indices] <= loss]
        assert math.isnan(needed) or needed <= enough.min() * (1 + 1e-9)


@given(runs)
def test_envelope_has_the_runs_with_the_lowest_loss_for_their_budget(points):
    flops, losses = (np.array(column) for column in zip(*points, strict=True))
    expected = [
        index
        for index, (cost, loss) in enumerate(points)
        if not any(
            other <= SAME_BUDGET * cost and (other_loss < loss or (other_loss == loss and other < cost))
            for other, other_loss in points
        )
    ]
    assert sorted(on_envelope(flops, losses)) == expected


def test_only_the_best_run_of_a_budget_is_used():
    """Runs that are slightly cheaper and worse would add a nearly vertical segment, here at 14.5 TFLOP."""
    flops, losses = [14.50e12, 14.55e12, 14.65e12, 130e12], [4.73, 4.27, 4.21, 3.88]
    assert list(on_envelope(flops, losses)) == [2, 3]
    assert math.isnan(flops_at_loss(4.5, flops, losses))


@given(runs, st.floats(1.0, 8.0), st.floats(0.0, 3.0), st.floats(1.0, 100.0), st.randoms(use_true_random=False))
def test_flops_at_loss_ignores_worse_runs_order_and_unit(points, loss, loss_increase, cost_factor, random):
    expected = flops_at_loss(loss, *zip(*points, strict=True))
    cost, loss_of_run = random.choice(points)
    shuffled = [*points, (cost * cost_factor, loss_of_run + loss_increase)]
    random.shuffle(shuffled)
    flops, losses = (np.array(column) for column in zip(*shuffled, strict=True))
    assert flops_at_loss(loss, 7 * flops, losses) == pytest.approx(7 * expected, rel=1e-9, nan_ok=True)


def test_envelope_variance_matches_finite_differences():
    """The loss is half-way, in ln FLOPs, between two runs of one power law."""
    flops, law = np.array([1e12, 4e12]), lambda cost: 4 * (cost / 1e12) ** -0.1
    by_run = [pd.Series(law(cost) + np.array(noise)) for cost, noise in zip(flops, ([-0.01, 0.01], [0.0]), strict=True)]
    cost, middle = np.array([6e12]), np.array([law(2e12)])
    variance, freedom = envelope_variance(middle, cost, flops, by_run)
    means, ends = [run.mean() for run in by_run], []
    for shift in (-1e-5, 1e-5):
        ends.append([cost[0] / flops_at_loss(middle[0], flops, np.add(means, shift * np.eye(2)[i])) for i in (0, 1)])
    slopes = (np.array(ends[1]) - np.array(ends[0])) / 2e-5
    variance_of_seeds = 2e-4  # one degree of freedom: two seeds of one run
    assert (variance, freedom) == (
        pytest.approx(variance_of_seeds * (slopes[0] ** 2 / 2 + slopes[1] ** 2), rel=1e-4),
        1,
    )
    # d ln F / d ln L = 10, and both runs have weight 1/2
    assert slopes == pytest.approx(-3 * 0.5 * 10 / np.array(means), rel=1e-3)
    assert envelope_variance(middle, cost, flops, [run[:1] for run in by_run]) is None


CLAIM = next(claim for claim in read_claims().claims if claim.id == "tokenformer-growth-saves-cost")
ATTAINABLE = CLAIM.model_copy(update={"regime": CLAIM.regime[-1:]})
CLAIM = CLAIM.model_copy(update={"regime": ()})  # test_conditions.py tests the conditions
LAW = [(size, length, size * length * 1e12) for size in (1, 2, 4) for length in (1, 2, 4)]


def evaluated(root, *, seeds=(0, 1, 2), loss=None, flops=4e12, left_out=(), init=None, lender_tokens=None, spread=0.0,
              claim=CLAIM, inherited=0.0):  # fmt: skip
    """Return the verdict on a chain of models with `flops` in total.

    By default, the chain has the loss of a Transformer with 8e12 FLOPs. If `lender_tokens` is given, test.csv is on
    another data set, and lender_test.csv has the loss on the data set of the envelope, in windows of `lender_tokens`
    tokens. `inherited` is the FLOPs of the models before the last stage, which `flops` includes.
    """
    for size, length, cost in LAW:
        if (size, length) in left_out:
            continue
        for seed in seeds:
            changes = {"parameters": size * 1000, "tokens": length * 1000, "init": init}
            run_loss = 4 * (cost / 1e12) ** -0.1 + spread * (seed - 1)
            write_run(root, f"envelope-{size}-{length}", seed, run_loss, cost, **changes)
    for seed in (0, 1, 2):
        chain_loss = 4 * 8**-0.1 if loss is None else loss
        test_data = {"data": NOVELS["data"]} if lender_tokens else {}
        folder = write_run(root, "grown-random-sqrt-4", seed, 3.9 if lender_tokens else chain_loss, flops - inherited,
                           tokens=1, inherited=inherited, **test_data)  # fmt: skip
        if lender_tokens:
            (folder / "lender_test.csv").write_text(f"window,tokens,loss_nats\n0,{lender_tokens},{chain_loss!r}\n")
    arms = ClaimArms(arms={"grown": Arm(run="grown-random-sqrt-4", envelope=("envelope-*",))})
    rows = ClaimRows(Results(root), "tokenformer", arms)
    return evaluate(claim, rows, {}, "overnight")


def write_run(root, run, seed, loss, flops, **changes):
    """Write a run with this held-out loss."""
    init = changes.pop("init", None)
    folder = make_run(root, "tokenformer", run, seed, flops=flops, init=init, **changes)
    (folder / "test.csv").write_text(f"window,tokens,loss_nats\n0,10,{loss!r}\n")
    return folder


@pytest.mark.parametrize(("inherited", "outcome"), [(7.9e12, "contradicts"), (8.1e12, "not_tested")])
def test_a_chain_whose_earlier_models_cost_more_than_half_of_the_largest_transformer_does_not_test_the_claim(
    tmp_path, inherited, outcome
):
    verdict = evaluated(tmp_path / "overnight", flops=1e13, claim=ATTAINABLE, inherited=inherited)
    assert verdict.outcome == outcome
    reason = verdict.items[0].reason
    assert ("already 0.51 times" in reason and "(needed: at most 0.50)" in reason) == (outcome == "not_tested")


def test_a_chain_at_half_the_cost_agrees_with_the_claim(tmp_path):
    verdict = evaluated(tmp_path / "overnight")
    assert verdict.outcome == "agrees"
    assert verdict.items[0].texts["cost"] == "0.5000 [0.5000, 0.5000]"
    assert "envelope-2-4" in verdict.runs
    assert evaluated(tmp_path / "more_flops/overnight", flops=4.1e12).outcome == "contradicts"
    on_lender = evaluated(tmp_path / "lender/overnight", lender_tokens=10)
    # the chain is compared by its loss on the data set of the envelope
    assert on_lender.items[0].texts == verdict.items[0].texts
    single = evaluated(tmp_path / "single/overnight", seeds=(0,))
    # one seed per run of the envelope is enough for all seeds of the chain
    assert (single.outcome, single.items[0].seeds) == ("agrees", 3)


def test_the_variance_of_the_envelope_widens_the_interval(tmp_path):
    """The chain has the same loss in every seed; the losses of the envelope differ between seeds."""
    verdict = evaluated(tmp_path / "overnight", flops=3e12, spread=0.02)
    cost = verdict.items[0].quantities["cost"]
    assert cost.by_seed.std() < 1e-12
    interval = cost.interval(0.95)
    assert interval.mean == pytest.approx(3 / 8, rel=1e-3)
    # Two runs of 8e12 FLOPs have weight 1/2 each at this loss; the 9 runs with 3 seeds have 18 degrees of freedom.
    slope = 0.5 * 0.375 * 10 / (4 * 8**-0.1)
    half_width = stats.t(18).ppf(0.975) * math.sqrt(2) * slope * 0.02 / math.sqrt(3)
    assert interval.high - interval.mean == pytest.approx(half_width, rel=1e-2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": 2.0}, "a loss of 2 nats lies beyond the ends of the envelope (4 to 3.031)"),
        ({"left_out": [(4, 2)]}, "the envelope envelope-* needs 3 model sizes with 3 training lengths each; it has 2"),
        ({"lender_tokens": 11}, "run grown-random-sqrt-4 was not tested on the text of envelope-1-1"),
        ({"init": "transformer-1"}, "not from scratch: envelope-1-1, envelope-1-2"),
    ],
)
def test_claim_is_not_tested_without_an_envelope_at_the_loss_of_the_chain(tmp_path, changes, reason):
    verdict = evaluated(tmp_path / "overnight", **changes)
    assert verdict.outcome == "not_tested"
    assert reason in verdict.items[0].reason
