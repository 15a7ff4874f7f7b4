"""Intervals over seeds and over examples."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from formerlab.statistics import (
    bootstrap,
    bootstrap_means,
    paired_student,
    standard_error,
    student,
)


def test_student_is_scipys_interval():
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


def test_paired_difference_uses_the_seeds_that_both_have():
    a, b = {0: 3.0, 1: 4.0, 2: 5.0}, {1: 3.5, 2: 4.4, 7: 0.0}
    interval = paired_student(a, b)
    expected = stats.ttest_rel([4.0, 5.0], [3.5, 4.4]).confidence_interval(0.95)
    assert interval.seeds == 2
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_paired_logarithm_is_the_logarithm_of_the_ratio():
    interval = paired_student({0: 2.0, 1: 4.0}, {0: 1.0, 1: 2.0}, logarithm=True)
    assert interval.mean == pytest.approx(math.log(2))
    assert interval.high == pytest.approx(math.log(2))


def test_bootstrap_of_a_constant_shift_has_no_width():
    interval = bootstrap(np.full((2, 10), 0.25))
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.25, 0.25, 0.25))


def test_bootstrap_agrees_with_student_on_many_examples():
    values = np.random.default_rng(0).normal(1.0, 2.0, (1, 2000))
    found, expected = bootstrap(values), student(values[0])
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)


def test_bootstrap_weights_examples_by_their_tokens():
    values = np.array([[1.0, 3.0]])
    assert bootstrap(values, np.array([3.0, 1.0])).mean == pytest.approx(1.5)
    replicates = bootstrap_means(values, np.array([3.0, 1.0]))
    assert set(np.round(np.unique(replicates), 6)) == {1.0, 1.5, 3.0}


def test_differences_of_replicates_are_replicates_of_differences():
    random = np.random.default_rng(1)
    a, b, weights = random.normal(size=(3, 40)), random.normal(size=(3, 40)), random.uniform(1, 2, 40)
    together = bootstrap_means(np.stack([a, b]), weights, resamples=300)
    assert together.shape == (300, 2)
    np.testing.assert_allclose(bootstrap_means(a - b, weights, resamples=300), together[:, 0] - together[:, 1])
    np.testing.assert_allclose(bootstrap_means(a, weights, resamples=300), together[:, 0])


def test_chunks_do_not_repeat_each_other():
    values = np.random.default_rng(2).normal(size=(1, 20_000))
    replicates = bootstrap_means(values, resamples=300)
    assert len(np.unique(replicates)) == 300


def test_the_spread_between_seeds_enters():
    same = np.zeros((3, 50))
    apart = same + np.array([-1.0, 0.0, 1.0])[:, None]
    assert bootstrap(same).high == 0
    assert bootstrap(apart).high == pytest.approx(1.0, abs=0.4)


def test_a_single_example_has_no_interval():
    assert not bootstrap(np.array([[1.0]])).known


@pytest.mark.parametrize("shape", [(1, 60), (3, 60), (2, 5)])
def test_standard_error_is_the_spread_of_the_bootstrap(shape):
    values = np.random.default_rng(3).normal(size=shape) + np.arange(shape[0])[:, None]
    replicates = bootstrap_means(values, resamples=20_000)
    assert standard_error(values) == pytest.approx(replicates.std(), rel=0.03)


def test_standard_error_of_one_seed_is_that_of_a_proportion():
    answers = np.array([[1.0] * 30 + [0.0] * 70])
    assert standard_error(answers) == pytest.approx(math.sqrt(0.3 * 0.7 / 100))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_intervals_lie_around_their_mean_and_among_the_values(values):
    over_seeds, over_examples = student(values), bootstrap(np.array([values]), resamples=500)
    assert over_seeds.low <= over_seeds.mean <= over_seeds.high
    assert min(values) - 1e-9 <= over_examples.low <= over_examples.high <= max(values) + 1e-9
    assert over_seeds.mean == pytest.approx(over_examples.mean)
