"""Values that claims use, computed from rows with known values."""

import pytest
from fixtures.rows import NOVELS, WINDOWS, make_decay, make_run, model, write, write_csv

from formerlab.report.claims.quantity import MissingRowsError
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import ClaimRows
from formerlab.results.read import Results


def test_chance_is_zero_for_tasks_without_choices(tmp_path):
    """LAMBADA has no choices (registry, tokenformer-zeroshot-beats-pythia)."""
    tasks = (("lambada", ""), ("piqa", 2))
    rows = [(task, 1, example, "acc", 1.0, choices) for task, choices in tasks for example in "ab"]
    write(make_run(tmp_path, "tokenformer", "one") / "zeroshot.csv", rows)
    model_arm, chance = Arm(run="one"), Arm(run="one", chance=True)
    for suites, expected in ((("lambada",), 1.0), (("piqa",), 0.5), (("lambada", "piqa"), 0.75)):
        arms = ClaimArms(arms={"model": model_arm, "chance": chance}, suites=suites)
        means = ClaimRows(Results(tmp_path), "tokenformer", arms).paired_mean(model_arm, chance, "accuracy")
        assert means.interval(0.95).mean == pytest.approx(expected)
    arms = ClaimArms(arms={"model": model_arm}, suites=("piqa", "hellaswag"))
    with pytest.raises(MissingRowsError, match="run one has no acc of hellaswag"):
        ClaimRows(Results(tmp_path), "tokenformer", arms).load_examples(model_arm, "accuracy")


def test_a_file_of_tasks_without_choices_has_no_column_choices(tmp_path):
    columns = ("task", "task_version", "example", "metric", "value")
    rows = [("lambada", 1, example, "acc", 1.0) for example in "ab"]
    write_csv(make_run(tmp_path, "tokenformer", "one") / "zeroshot.csv", columns, rows)
    arms = ClaimArms(arms={"one": Arm(run="one")})
    loaded = ClaimRows(Results(tmp_path), "tokenformer", arms).load_examples(Arm(run="one"), "above_chance")
    assert loaded.groups[0].mean() == 1.0


def test_a_diverged_run_ends_with_the_loss_of_a_uniform_guess(tmp_path):
    """Rule 6 of claims.md also holds for the losses of a curve."""
    make_run(tmp_path, "tokenformer", "good", loss=3.0)
    diverged_run = make_run(tmp_path, "tokenformer", "gone", loss=3.0, status="diverged", diverged_at_step=100)
    write(diverged_run / "test.csv", [(window, 64, 6.0) for window in range(WINDOWS)])
    # the run has 200 steps, so its second half has no validation
    write(diverged_run / "eval.csv", [(step, "valid", 0, 512, 3.0) for step in (0, 100)])
    rows = ClaimRows(Results(tmp_path), "tokenformer", ClaimArms(arms={}))
    assert rows._validation("good", "last_step")[0] == pytest.approx(3.06, abs=0.05)
    assert rows._validation("gone", "last_step")[0] == 6.0
    assert rows._validation("gone", "area_under_curve")[0] == (3.0 + 4.5) / 2


def test_an_arm_must_select_one_configuration(tmp_path):
    make_decay(tmp_path)
    rows = ClaimRows(Results(tmp_path), "decay", ClaimArms(arms={}))
    with pytest.raises(MissingRowsError, match="several values of recent; set `recent` of the arm"):
        rows.load_examples(Arm(run="decoder", policy="decay", alpha=0.2, budget=0.4), "loss_nats")
    with pytest.raises(MissingRowsError, match="several values of budget; set `budget` of the arm"):
        rows.load_examples(Arm(run="decoder", policy="h2o"), "loss_nats")
    selected = rows.load_examples(Arm(run="decoder", policy="decay", alpha=0.2, recent=0.0, budget=0.4), "loss_nats")
    assert selected.groups[0].shape[:2] == (1, WINDOWS)


def test_variance_of_a_model_uses_its_runs_on_any_text(tmp_path):
    """Other models and runs of more than twice the cost are excluded."""
    losses = {"a": (3.0, 3.1), "elsewhere": (4.0, 4.3), "other": (3.0, 3.9), "expensive": (3.0, 3.7)}
    changes = {"elsewhere": NOVELS, "other": {"spec": model(layers=9)}, "expensive": {"flops": 3e12}}
    for run, by_seed in losses.items():
        for seed, loss in enumerate(by_seed):
            folder = make_run(tmp_path, "tokenformer", run, seed, **changes.get(run, {}))
            write(folder / "test.csv", [(window, 64, loss) for window in range(WINDOWS)])
    rows = ClaimRows(Results(tmp_path), "tokenformer", ClaimArms(arms={}))
    assert rows.run_metric(Arm(run="a"), "loss_nats").model_variance() == pytest.approx(((0.1**2 + 0.3**2) / 2 / 2, 2))
