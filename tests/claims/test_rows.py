"""The numbers that claims are judged by, from rows whose answers are known."""

import pytest
from fixtures.rows import WINDOWS, make_decay, make_run, write

from formerlab.report.claims.quantity import MissingRowsError
from formerlab.report.claims.registry import Arm, ClaimArms
from formerlab.report.claims.rows import Rows
from formerlab.results.read import Results


def test_chance_is_zero_where_the_answer_is_free(tmp_path):
    """LAMBADA offers no choices (registry, tokenformer-zeroshot-beats-pythia)."""
    tasks = (("lambada", ""), ("piqa", 2))
    rows = [(task, 1, example, "acc", 1.0, choices) for task, choices in tasks for example in "ab"]
    write(make_run(tmp_path, "tokenformer", "one") / "zeroshot.csv", rows)
    own, chance = Arm(run="one"), Arm(run="one", chance=True)
    for suites, expected in ((("lambada",), 1.0), (("piqa",), 0.5), (("lambada", "piqa"), 0.75)):
        arms = ClaimArms(arms={"own": own, "chance": chance}, suites=suites)
        found = Rows(Results(tmp_path), "tokenformer", arms).paired(own, chance, "accuracy")
        assert found.interval(0.95).mean == pytest.approx(expected)
    arms = ClaimArms(arms={"own": own}, suites=("piqa", "hellaswag"))
    with pytest.raises(MissingRowsError, match="run one has no acc of hellaswag"):
        Rows(Results(tmp_path), "tokenformer", arms).sample(own, "accuracy")


def test_an_arm_is_one_policy(tmp_path):
    make_decay(tmp_path)
    rows = Rows(Results(tmp_path), "decay", ClaimArms(arms={}))
    with pytest.raises(MissingRowsError, match="several values of recent; name one"):
        rows.sample(Arm(run="decoder", policy="decay", alpha=0.2, budget=0.4), "loss_nats")
    with pytest.raises(MissingRowsError, match="several values of budget; name one"):
        rows.sample(Arm(run="decoder", policy="h2o"), "loss_nats")
    one = rows.sample(Arm(run="decoder", policy="decay", alpha=0.2, recent=0.0, budget=0.4), "loss_nats")
    assert one.groups[0].shape[:2] == (1, WINDOWS)
