"""The quantities of `regime` on synthetic runs."""

import json

import pandas as pd
import pytest
from fixtures.rows import dwa, make_run, model, write_csv

from formerlab.report.claims.conditions import QUANTITIES, arm_runs, shots, unmet_conditions
from formerlab.report.claims.registry import Arm, ClaimArms, Condition, read_claims
from formerlab.report.claims.rows import ClaimRows
from formerlab.results.read import Results

CLAIM = next(claim for claim in read_claims().claims if claim.id == "denseformer-better-at-equal-time")


def claim_and_runs(root, *conditions, **arms):
    """Return a claim with these conditions, and the runs of its arms."""
    arms_by_name = {name: arm if isinstance(arm, Arm) else Arm(run=arm) for name, arm in arms.items()}
    claim = CLAIM.model_copy(update={"regime": tuple(Condition(**condition) for condition in conditions)})
    return claim, arm_runs(claim, ClaimRows(Results(root), "study", ClaimArms(arms=arms_by_name)), None)


def value(root, quantity, arm):
    return QUANTITIES[quantity](claim_and_runs(root, arm=arm)[1]["arm"])


def holds(root, quantity, limits, **arms):
    return not unmet_conditions(*claim_and_runs(root, {"quantity": quantity, "of": tuple(arms), **limits}, **arms))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "overnight"


def change(folder, **changes):
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | changes))


def test_settings_and_counts_are_read_from_the_record(root):
    spec = model(layers=6, depth=dwa(4, 5)) | {"position": {"kind": "rotary", "fraction": 0.25}}
    make_run(root, "study", "a", spec=spec, read=[{"epochs": 0.5, "tokens_cumulative": 7}, {"epochs": 1.5}])
    values = {name: value(root, name, "a") for name in ("depth", "heads", "head_width", "dilation", "period", "steps")}
    assert values == {"depth": 6, "heads": 4, "head_width": 16, "dilation": 4, "period": 5, "steps": 200}
    assert (value(root, "epochs", "a"), value(root, "rotary", "a")) == (1.5, 0.25)
    assert value(root, "tokens_per_parameter", "a") == pytest.approx(102_400 / 217_000)
    make_run(root, "study", "plain", spec=model() | {"d_key": 32})
    assert [value(root, name, "plain") for name in ("dilation", "period", "head_width")] == [0, 0, 32]


def test_growth_counts_new_parameters_and_the_tokens_of_the_parent(root):
    make_run(root, "study", "parent", parameters_non_embedding=17_000, read=[{"tokens_cumulative": 850_000}])
    make_run(root, "study", "grown", init="parent")
    assert value(root, "tokens_per_new_parameter", "grown") == pytest.approx(102_400 / 200_000)
    assert value(root, "start_tokens_per_parameter", "grown") == pytest.approx(50)
    condition = {"quantity": "tokens_per_new_parameter", "of": "a", "at_least": 1}
    lines = unmet_conditions(*claim_and_runs(root, condition, a="parent"))
    assert lines == ["'a' does not start from a run of this scale"]


def write_curve(folder, losses, lrs=(1.0,), train=(3.0,), **columns):
    steps = range(0, 10 * len(losses), 10)
    table = pd.DataFrame({"step": steps, "split": "valid", "batch": 0, "tokens": 8, "loss_nats": losses})
    table.to_csv(folder / "eval.csv", index=False)
    lrs = [*lrs, *[lrs[-1]] * (len(train) - len(lrs))]
    train = [*train, *[train[-1]] * (len(lrs) - len(train))]
    rows = {"step": range(1, len(lrs) + 1), "tokens": 8, "loss_nats": train, "lr": lrs, "grad_norm": 1.0}
    pd.DataFrame(rows | columns).to_csv(folder / "train.csv", index=False)


def test_quantities_of_the_validation_curve(root):
    write_curve(make_run(root, "study", "a"), [9, 5, 4, 3, 2.5, 2, 1.9, 1.8, 1.6, 1.4, 1.7], lrs=(0.1, 1.0, 0.01))
    assert value(root, "final_rate_share", "a") == pytest.approx(0.01)
    # the decrease from step 90 to step 100, the last tenth of the run
    assert value(root, "still_falling", "a") == pytest.approx(-0.3)
    assert value(root, "rise_from_best", "a") == pytest.approx(0.3)
    # the decrease from step 50 to step 100, the second half of the run
    assert value(root, "still_learning", "a") == pytest.approx(2 - 1.7)
    write_curve(make_run(root, "study", "seldom"), [4.0, 3.0, 2.6])
    # the last two validations are half of the run (five tenths) apart
    assert value(root, "still_falling", "seldom") == pytest.approx(0.4 / 5)


def test_examples_of_masks_are_windows(root):
    """19 windows are too few: several metrics and configurations of a window count once."""
    folder = make_run(root, "study", "a")
    arm = Arm(run="a", policy="h2o", budget=0.2)
    claim = next(claim for claim in read_claims().claims if claim.id == "decay-mask-closer-to-ideal")
    condition = Condition(quantity="examples", of="decay", at_least=20)
    for count in (19, 20):
        rows = [
            ("h2o", "", 0.5, budget, window, metric, 0.1, window // 2)
            for budget in (0.2, 0.4)
            for window in range(count)
            for metric in ("distance_to_ideal", "early_share")
        ]
        columns = ("policy", "alpha", "recent", "budget", "window", "metric", "value", "document")
        write_csv(folder / "prune_masks.csv", columns, rows)
        claim_with_condition = claim.model_copy(update={"regime": (condition,)})
        rows = ClaimRows(Results(root), "study", ClaimArms(arms={"decay": arm}))
        lines = unmet_conditions(claim_with_condition, arm_runs(claim_with_condition, rows, None))
        assert lines == ([] if count == 20 else ["examples of 'decay': 19 (needed: at least 20)"])
        assert rows.window_and_document_counts(arm, "distance_to_ideal") == (count, (count + 1) // 2)


def test_overfit_needs_the_training_loss_without_label_smoothing(root):
    """The smoothed loss only bounds the loss without smoothing, so it gives no value."""
    tasks = {"plain": ("translation", 0.0), "a": ("translation", 0.1), "text": ("language_modeling", 0.0)}
    for name, (kind, smoothing) in tasks.items():
        folder = make_run(root, "study", name)
        spec = json.loads((folder / "run.json").read_text())["spec"]
        change(folder, spec=spec | {"task": {"kind": kind, "label_smoothing": smoothing}})
        write_curve(folder, [4.0, 2.0], train=[1.8])
    assert value(root, "overfit", "plain") == pytest.approx(0.2)
    condition = {"quantity": "overfit", "of": "arm", "at_least": -9}
    (line,) = unmet_conditions(*claim_and_runs(root, condition, arm="a"))
    assert line.endswith("of 'arm': not known, because the rows have only the training loss with label smoothing")
    write_curve(root / "study/a/seed0", [4.0, 2.0], train=[1.8], unsmoothed_nats=1.5)
    assert value(root, "overfit", "a") == pytest.approx(0.5)
    # language modelling has no value: its validation documents are not a random sample of the training distribution
    assert not holds(root, "overfit", {"at_least": -9}, arm="text")


@pytest.mark.parametrize(
    ("rate_in_use", "rates", "inside"),
    [
        (0.01, {0.005: 4.4, 0.01: 4.3, 0.02: 4.5}, 1),
        (0.01, {0.005: 4.2, 0.01: 4.3, 0.02: 4.5}, 0),
        (0.01, {0.005: 4.4, 0.01: 4.3}, 0),
        (0.01, {0.0025: 4.4, 0.01: 4.3, 0.02: 4.5}, 0),
        (0.01, {}, 0),
    ],
)
def test_rate_inside_needs_rates_on_both_sides(root, rate_in_use, rates, inside):
    make_run(root, "study", "a", optimizer={"lr": rate_in_use}, tokens=400)
    for rate, loss in rates.items():
        make_run(
            root.parent / "pilot", "study", f"s-{round(1e4 * rate)}", 7, optimizer={"lr": rate}, loss=loss, tokens=100
        )
    make_run(root.parent / "pilot", "study", "s-other", spec=model(layers=9), loss=0.1)
    arm = Arm(run="a", searched=("pilot/s-*",))
    assert holds(root, "rate_inside", {"at_least": 1}, arm=arm) == bool(inside)
    if rates:
        assert value(root, "rates_searched", arm) == len(rates)
        assert value(root, "search_share", arm) == 0.25
        assert holds(root, "same_grid", {"at_least": 1}, one=arm, other=arm)


def test_rates_are_compared_over_common_seeds(root):
    """One lucky seed of a neighbouring rate is compared with the same seed of the rate in use."""
    for seed, loss in enumerate((4.30, 4.40, 4.50)):
        make_run(root, "study", "s-100", seed, optimizer={"lr": 0.01}, loss=loss)
    for rate, loss in ((0.005, 4.31), (0.02, 4.32)):
        make_run(root, "study", f"s-{rate * 1e4:.0f}", optimizer={"lr": rate}, loss=loss)
    arm = Arm(run="s-100", searched=("overnight/s-*",))
    assert holds(root, "rate_inside", {"at_least": 1}, arm=arm)
    make_run(root, "study", "s-best", optimizer={"lr": 0.015}, loss=4.29)
    assert not holds(root, "rate_inside", {"at_least": 1}, arm=arm)


def test_a_rate_search_starts_from_the_same_parents(root):
    for seed in (0, 1):
        make_run(root, "study", "parent", seed, weights_sha256=f"{seed}" * 64)
    init = {"id": "study/parent/seed0", "weights_sha256": "0" * 64}
    change(make_run(root, "study", "grown"), init=init)
    for name, weights in (("s-a", "1"), ("s-b", "9")):
        change(make_run(root, "study", name), init={"id": "x/y/seed0", "weights_sha256": weights * 64})
    assert value(root, "rates_searched", Arm(run="grown", searched=("overnight/s-*",))) == 1
    other = Arm(run="grown", searched=("overnight/s-b",))
    assert not holds(root, "rates_searched_apart", {"at_most": 0}, one=other, other=other)


def test_apart_is_the_relative_difference_between_the_largest_and_the_smallest_arm(root):
    epochs = {"a": [{"epochs": 40.0}, {"epochs": 2.34}], "b": [{"epochs": 40.0}, {"epochs": 4.68}]}
    make_run(root, "study", "a", parameters=300, parameters_non_embedding=100, tokens=1000, read=epochs["a"])
    make_run(root, "study", "b", parameters=309, parameters_non_embedding=200, tokens=8000, read=epochs["b"])
    # the second arm may have twice as many epochs
    assert holds(root, "epochs_apart", {"at_most": 1}, one="a", other="b")
    assert not holds(root, "epochs_apart", {"at_most": 0.9}, one="a", other="b")
    # the parameter counts with the embedding are close
    assert holds(root, "parameters_apart", {"at_most": 0.031}, one="a", other="b")
    assert not holds(root, "parameters_non_embedding_apart", {"at_most": 0.5}, one="a", other="b")
    assert holds(root, "tokens_ratio", {"at_least": 8}, one="b", other="a")
    assert holds(root, "rotary_apart", {"at_most": 0}, one="a", other="b"), "neither arm has rotary positions"
    line = unmet_conditions(*claim_and_runs(root, {"quantity": "depth", "of": "a", "at_least": 24}, a="a"))
    assert line == ["blocks of 'a': 4 (needed: at least 24)"]


def test_curves_of_diverged_runs_are_not_checked(root):
    write_curve(make_run(root, "study", "a", status="diverged"), [3.0, 9.0])
    assert holds(root, "rise_from_best", {"at_most": 0.02}, arm="a")
    assert not holds(root, "depth", {"at_least": 24}, arm="a")


def test_gain_of_depth_is_the_lower_end_of_the_interval_of_the_difference(root):
    for seed in range(3):
        make_run(root, "study", "plain", seed, loss=4.0)
        make_run(root, "study", "deep", seed, loss=3.0)
    assert holds(root, "gain_of_depth", {"at_least": 0}, plain="plain", deep="deep")
    assert not holds(root, "gain_of_depth", {"at_least": 0}, plain="deep", deep="plain")


def test_shots_are_read_from_the_name_of_a_suite():
    assert [shots(name) for name in ("copa_5_shots_local", "piqa_local")] == [5, 0]
