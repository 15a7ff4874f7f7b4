"""The FLOPs that models from scratch need for a loss, on envelopes that are known."""

import math

import numpy as np
import pytest
from fixtures.rows import NOVELS, make_run
from hypothesis import given
from hypothesis import strategies as st

from formerlab.report.claims.envelope import SAME_BUDGET, flops_at_loss, on_envelope
from formerlab.report.claims.registry import Arm, ClaimArms, read_claims
from formerlab.report.claims.rows import Rows
from formerlab.report.claims.verdict import judge
from formerlab.results.read import Results

runs = st.lists(st.tuples(st.floats(1e9, 1e15), st.floats(1.0, 8.0)), min_size=1, max_size=12, unique=True)


@given(st.floats(0.02, 0.5), st.floats(1e9, 1e20), st.floats(0.05, 0.95))
def test_a_power_law_is_found_again(exponent, scale, share):
    """Loss falls as FLOPs to a power: between the ends every loss has the FLOPs of the law."""
    flops = scale * np.array([1.0, 3.0, 10.0, 50.0])
    asked = scale * 50**share
    found = flops_at_loss(4 * (asked / scale) ** -exponent, flops, 4 * (flops / scale) ** -exponent)
    assert found == pytest.approx(asked, rel=1e-9)


@given(runs)
def test_no_run_on_the_envelope_costs_less_than_the_envelope_at_its_loss(points):
    flops, losses = (np.array(column) for column in zip(*points, strict=True))
    places = on_envelope(flops, losses)
    for loss in losses:
        needed = flops_at_loss(loss, flops, losses)
        assert math.isnan(needed) == (loss > losses[places[0]]), "only a run worse than the cheapest"
        enough = flops[places][losses[places] <= loss]
        assert math.isnan(needed) or needed <= enough.min() * (1 + 1e-9)


@given(runs)
def test_on_the_envelope_are_the_runs_that_none_of_their_budget_or_a_smaller_one_equals(points):
    flops, losses = (np.array(column) for column in zip(*points, strict=True))
    expected = [
        place
        for place, (cost, loss) in enumerate(points)
        if not any(
            other <= SAME_BUDGET * cost and (found < loss or (found == loss and other < cost))
            for other, found in points
        )
    ]
    assert sorted(on_envelope(flops, losses)) == expected


def test_of_runs_of_one_budget_the_best_alone_counts():
    """The cheaper ones would be a wall: here 14.5 TFLOP, in whole steps of three sizes."""
    flops, losses = [14.50e12, 14.55e12, 14.65e12, 130e12], [4.73, 4.27, 4.21, 3.88]
    assert list(on_envelope(flops, losses)) == [2, 3]
    assert math.isnan(flops_at_loss(4.5, flops, losses))


@given(runs, st.floats(1.0, 8.0), st.floats(0.0, 3.0), st.floats(1.0, 100.0), st.randoms(use_true_random=False))
def test_worse_runs_their_order_and_the_unit_of_flops_do_not_matter(points, loss, worse, dearer, random):
    expected = flops_at_loss(loss, *zip(*points, strict=True))
    cost, found = random.choice(points)
    shuffled = [*points, (cost * dearer, found + worse)]
    random.shuffle(shuffled)
    flops, losses = (np.array(column) for column in zip(*shuffled, strict=True))
    assert flops_at_loss(loss, 7 * flops, losses) == pytest.approx(7 * expected, rel=1e-9, nan_ok=True)


CLAIM = next(claim for claim in read_claims().claims if claim.id == "tokenformer-growth-saves-cost")
CLAIM = CLAIM.model_copy(update={"regime": ()})  # which test_regime.py has
LAW = [(size, length, size * length * 1e12) for size in (1, 2, 4) for length in (1, 2, 4)]


def judged(root, *, seeds=(0, 1, 2), loss=None, flops=4e12, left_out=(), init=None, lent=None):
    """The verdict on a chain of `flops` that reaches the loss of a Transformer of 8e12, or `loss`.

    With `lent` the chain was tested on another text, and on so many tokens a window of the text of the others.
    """
    for size, length, cost in LAW:
        if (size, length) in left_out:
            continue
        for seed in seeds:
            changes = {"parameters": size * 1000, "tokens": length * 1000, "init": init}
            exact(root, f"envelope-{size}-{length}", seed, 4 * (cost / 1e12) ** -0.1, cost, **changes)
    for seed in (0, 1, 2):
        reached, other = 4 * 8**-0.1 if loss is None else loss, {"data": NOVELS["data"]} if lent else {}
        folder = exact(root, "grown-random-sqrt-4", seed, 3.9 if lent else reached, flops, tokens=1, **other)
        if lent:
            (folder / "lender_test.csv").write_text(f"window,tokens,loss_nats\n0,{lent},{reached!r}\n")
    arms = ClaimArms(arms={"grown": Arm(run="grown-random-sqrt-4", envelope=("envelope-*",))})
    rows = Rows(Results(root), "tokenformer", arms)
    return judge(CLAIM, rows, {}, "overnight")


def exact(root, run, seed, loss, flops, **changes):
    """A run whose held-out loss is this number."""
    init = changes.pop("init", None)
    folder = make_run(root, "tokenformer", run, seed, flops=flops, init=init, **changes)
    (folder / "test.csv").write_text(f"window,tokens,loss_nats\n0,10,{loss!r}\n")
    return folder


def test_a_chain_at_half_the_cost_saves_it(tmp_path):
    verdict = judged(tmp_path / "overnight")
    assert verdict.outcome == "agrees"
    assert verdict.items[0].values["cost"] == "0.5000 [0.5000, 0.5000]"
    assert "envelope-2-4" in verdict.runs
    assert judged(tmp_path / "dearer/overnight", flops=4.1e12).outcome == "contradicts"
    lent = judged(tmp_path / "lent/overnight", lent=10)
    assert lent.items[0].values == verdict.items[0].values, "its loss on their text, not on its own"
    single = judged(tmp_path / "single/overnight", seeds=(0,))
    assert (single.outcome, single.items[0].seeds) == ("agrees", 3), "one seed of the envelope serves all of the chain"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss": 2.0}, "a loss of 2 nats lies beyond the ends of the envelope (4 to 3.031)"),
        ({"left_out": [(4, 2)]}, "the envelope envelope-* needs 3 sizes of 3 lengths each; 2 have so many"),
        ({"lent": 11}, "run grown-random-sqrt-4 was not tested on the text of envelope-1-1"),
        ({"init": "transformer-1"}, "not from scratch: envelope-1-1, envelope-1-2"),
    ],
)
def test_without_an_envelope_at_its_loss_a_chain_is_not_tested(tmp_path, changes, reason):
    verdict = judged(tmp_path / "overnight", **changes)
    assert verdict.outcome == "not_tested"
    assert reason in verdict.items[0].reason
