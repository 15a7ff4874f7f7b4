"""The calibration error against its definition, bin by bin."""

import numpy as np
import pytest

from formerlab.calibration import expected_calibration_error


def by_definition(confidence, correct, bins):
    error = 0.0
    for place in range(bins):
        inside = (confidence > place / bins) & (confidence <= (place + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return error


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_it_is_its_definition(bins):
    random = np.random.default_rng(0)
    confidence, correct = random.uniform(0.01, 1, 500), random.random(500) < 0.7
    expected = by_definition(confidence, correct, bins)
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(expected)


def test_a_calibrated_classifier_has_none_and_a_sure_wrong_one_has_all():
    assert expected_calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    assert expected_calibration_error([1.0] * 3, [0, 0, 0]) == 1
