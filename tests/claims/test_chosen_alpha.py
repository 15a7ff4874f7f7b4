"""An arm whose alpha is chosen on one half of the questions and counted on the other."""

import pandas as pd
import pytest
from pydantic import ValidationError

from formerlab.report.claims.arms import Arm, ClaimArms
from formerlab.report.claims.rows import Rows

CHOICE = {"run": "decoder", "policy": "decay", "alphas": (0.2, 0.8), "recent": 0.0, "budget": 0.4}


class Answered:
    """Two tasks, each of which is answered rightly under an alpha of its own; task b has twice the questions."""

    def runs(self, study, names=("*",)):
        return pd.DataFrame({"run": ["decoder"], "seed": [0]})

    def rows(self, name, study, names):
        right = {"a": 0.2, "b": 0.8}
        return pd.DataFrame(
            {"policy": "decay", "alpha": alpha, "recent": 0.0, "budget": 0.4, "seed": 0, "metric": "acc"}
            | {"task": task, "example": f"{task}-{number:02d}", "value": float(right[task] == alpha)}
            for task, count in (("a", 20), ("b", 40))
            for alpha in (0.2, 0.8)
            for number in range(count)
        )


def accuracies(chosen):
    arm = Arm(**CHOICE, chosen=chosen)
    examples = Rows(Answered(), "decay", ClaimArms(arms={"own": arm})).examples(arm, "accuracy")
    return [group.mean() for group in examples.groups]


def test_every_task_gets_its_own_alpha():
    assert accuracies("own") == [1.0, 1.0]


def test_a_common_alpha_serves_one_of_two_tasks():
    assert sorted(accuracies("common")) == [0.0, 1.0]


def test_without_a_choice_alphas_are_averaged():
    assert accuracies(None) == [0.5, 0.5]


def test_one_alpha_leaves_no_choice():
    with pytest.raises(ValidationError, match="needs two alphas"):
        Arm(**(CHOICE | {"alphas": (0.2,)}), chosen="own")
