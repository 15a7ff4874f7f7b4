"""Alpha is chosen on one half of the questions and evaluated on the other half."""

import numpy as np

from formerlab.report.studies.two_fold import choose_alphas, chosen_answers, half_indices


def test_alpha_is_evaluated_on_the_other_half():
    halves = {task: np.arange(8) % 2 for task in ("a", "b")}

    def mean(grids, task, *, common=False):
        return chosen_answers(grids[task], choose_alphas(grids, halves, common=common)[task], halves[task]).mean()

    grids = {"a": np.zeros((2, 1, 8)), "b": np.zeros((2, 1, 8))}
    grids["a"][0] = grids["b"][1] = 1.0  # every task has an alpha that is always right
    assert [mean(grids, task) for task in "ab"] == [1.0, 1.0]
    assert sorted(mean(grids, task, common=True) for task in "ab") == [0.0, 1.0]
    noise = np.zeros((2, 1, 8))
    # every alpha is right on one half and wrong on the other
    noise[0, 0, halves["a"] == 0] = noise[1, 0, halves["a"] == 1] = 1.0
    assert mean({"a": noise}, "a") == 0.0  # the best alpha of one half is always wrong on the other half
    assert choose_alphas({"a": noise}, halves, common=False)["a"].tolist() == [[1, 0]]


def test_halves_are_even_and_depend_only_on_the_id():
    ids = [f"question-{number}" for number in range(400)]
    halves = half_indices({"a": ids, "b": ids[::-1]})
    assert 160 < halves["a"].sum() < 240
    assert halves["a"].tolist() == halves["b"][::-1].tolist()
