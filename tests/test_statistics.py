"""Intervals over seeds and over examples, and the calibration error."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from formerlab.report.runs import subtract
from formerlab.statistics import (
    Interval,
    bootstrap_means,
    expected_calibration_error,
    mean_ends,
    over_examples,
    standard_error,
    student,
    weighted_means,
)


def test_student_intervals_match_scipy():
    values = [3.1, 3.4, 2.9, 3.3]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    interval = student(values)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert (interval.seeds, interval.method) == (4, "student")


def test_one_seed_has_no_interval():
    interval = student([3.0])
    assert interval.mean == 3.0
    assert not interval.known
    assert str(interval) == "3 (n = 1)"
    assert not over_examples(np.array([[1.0]])).known


def test_paired_difference_uses_the_seeds_that_both_have():
    a, b = {0: 3.0, 1: 4.0, 2: 5.0}, {1: 3.5, 2: 4.4, 7: 0.0}
    interval = student(subtract(pd.Series(a), pd.Series(b)))
    expected = stats.ttest_rel([4.0, 5.0], [3.5, 4.4]).confidence_interval(0.95)
    assert interval.seeds == 2
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_bootstrap_agrees_with_student_on_many_examples():
    values = np.random.default_rng(0).normal(1.0, 2.0, (1, 2000))
    interval, expected = over_examples(values), student(values[0])
    assert interval.low == pytest.approx(expected.low, abs=0.02)
    assert interval.high == pytest.approx(expected.high, abs=0.02)


def test_bootstrap_weights_examples_by_their_tokens():
    values = np.array([[1.0, 3.0]])
    assert over_examples(values, np.array([3.0, 1.0])).mean == pytest.approx(1.5)
    replicates = bootstrap_means(values, np.array([3.0, 1.0]))
    assert set(np.round(np.unique(replicates), 6)) == {1.0, 1.5, 3.0}


def test_resampled_means_of_differences_equal_differences_of_resampled_means():
    random = np.random.default_rng(1)
    a, b, weights = random.normal(size=(3, 40)), random.normal(size=(3, 40)), random.uniform(1, 2, 40)
    together = bootstrap_means(np.stack([a, b]), weights, resamples=300)
    assert together.shape == (300, 2)
    np.testing.assert_allclose(bootstrap_means(a - b, weights, resamples=300), together[:, 0] - together[:, 1])
    np.testing.assert_allclose(bootstrap_means(a, weights, resamples=300), together[:, 0])


def random_effects(seed_effect, example_effect, pair_effect, seeds=3, examples=60, trials=600, seed=4):
    """Return values (trials, seeds, examples) with mean 0: random effects of seeds, examples and their pairs."""
    random = np.random.default_rng(seed)
    values = pair_effect * random.normal(size=(trials, seeds, examples))
    values += seed_effect * random.normal(size=(trials, seeds, 1))
    return values + example_effect * random.normal(size=(trials, 1, examples))


@pytest.mark.parametrize(
    ("seed_effect", "example_effect", "pair_effect"),
    [(1.0, 0.0, 0.1), (0.3, 1.0, 0.3), (0.1, 1.0, 1.0), (0.0, 1.0, 0.1), (0.5, 4.0, 1.0), (0.0, 0.0, 1.0)],
    ids=["seeds", "seeds and examples", "pairs too", "examples", "mostly examples", "pairs alone"],
)
def test_intervals_of_three_seeds_have_95_percent_coverage(seed_effect, example_effect, pair_effect):
    """Coverage with 4000 trials: 0.945, 0.936, 0.965, 0.948, 0.948, 0.989.

    It is too high for "pairs alone", because the effect of a pair counts in both variances. A bootstrap that also
    resamples the seeds has the coverage 0.70, 0.87, 0.96, 0.93, 0.92 and 1.00.
    """
    values = random_effects(seed_effect, example_effect, pair_effect)
    low, high = mean_ends(values.mean(axis=-1), bootstrap_means(values, resamples=400), values.shape[-1])
    covered = np.mean((low <= 0) & (high >= 0))
    assert 0.92 <= covered <= 0.995


def test_both_variances_enter_with_satterthwaites_degrees_of_freedom():
    values = random_effects(0.2, 1.0, 0.5, trials=1)[0]
    seeds, examples = values.shape
    seed_means, weights = np.average(values, axis=1, weights=range(1, 61)), np.arange(1.0, 61)
    between = stats.sem(seed_means) ** 2
    within = bootstrap_means(values, weights).var()
    freedom = (between + within) ** 2 / (between**2 / (seeds - 1) + within**2 / (examples - 1))
    assert seeds - 1 < freedom < examples
    expected = stats.t.interval(0.95, freedom, seed_means.mean(), math.sqrt(between + within))
    interval = over_examples(values, weights)
    assert (interval.low, interval.high) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(1, 60), (3, 60), (2, 5)])
def test_the_standard_error_matches_the_interval(shape):
    values = np.random.default_rng(3).normal(size=shape) + np.arange(shape[0])[:, None]
    within = bootstrap_means(values, resamples=20_000).var()
    between = stats.sem(values.mean(axis=1)) ** 2 if shape[0] > 1 else 0.0
    assert standard_error(values) == pytest.approx(math.sqrt(between + within), rel=0.03)


def test_the_standard_error_of_one_seed_matches_a_proportion():
    answers = np.array([[1.0] * 30 + [0.0] * 70])
    assert standard_error(answers) == pytest.approx(math.sqrt(0.3 * 0.7 / 100))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_intervals_lie_around_their_mean_and_among_the_values(values):
    of_seeds, of_examples = student(values), over_examples(np.array([values]), resamples=500)
    assert of_seeds.low <= of_seeds.mean <= of_seeds.high
    assert min(values) - 1e-9 <= of_examples.low <= of_examples.high <= max(values) + 1e-9
    assert of_seeds.mean == pytest.approx(of_examples.mean)


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (-0.02065, -0.04948, 0.008176, "-0.0207 [-0.0495, 0.0082]"),
        (31.605, 27.54, 35.67, "31.61 [27.54, 35.67]"),
        (0.008097, 3.228e-5, 0.01632, "0.00810 [0.00003, 0.01632]"),
        (0.5, 0.5, 0.5, "0.5 [0.5, 0.5]"),
        (3.2e18, 3.1e18, 3.3e18, "3.2e+18 [3.1e+18, 3.3e+18]"),
    ],
)
def test_intervals_show_three_digits_of_the_spread_and_four_of_the_value(mean, low, high, text):
    assert str(Interval(mean, low, high, seeds=3)) == text


def test_weighted_means_propagate_nan():
    rows = pd.DataFrame(
        {"run": ["a", "a", "b", "b", "c"], "tokens": [30, 10, 30, 10, 5], "loss_nats": [2.0, 4.0, 2.0, np.nan, np.inf]}
    )
    means = weighted_means(rows, ["run"])
    assert means["a"] == pytest.approx(2.5)
    assert np.isnan(means["b"])
    assert np.isinf(means["c"])


def by_definition(confidence, correct, bins):
    error = 0.0
    for index in range(bins):
        inside = (confidence > index / bins) & (confidence <= (index + 1) / bins)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return error


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_the_calibration_error_matches_its_definition(bins):
    random = np.random.default_rng(0)
    confidence, correct = random.uniform(0.01, 1, 500), random.random(500) < 0.7
    expected = by_definition(confidence, correct, bins)
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(expected)


def test_calibration_error_of_a_calibrated_and_of_a_wrong_classifier():
    assert expected_calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    assert expected_calibration_error([1.0] * 3, [0, 0, 0]) == 1
