"""Benchmark targets: the whole interval of a ratio decides whether a target is met."""

from timing import Target


def test_a_time_target_is_met_only_if_the_whole_interval_is_below_the_bound():
    target = Target("ours", "plain loop", 1.1)
    assert target.describe((1.0, 0.9, 1.1)).startswith("met: time of ours / plain loop 1.000 [0.900, 1.100] <= 1.1")
    assert target.describe((1.0, 0.9, 1.2)).startswith("inconclusive: ")
    assert target.describe((1.3, 1.2, 1.4)).startswith("not met: ")


def test_a_speed_target_is_met_only_if_the_whole_interval_is_above_the_bound():
    target = Target("full cache", "DynamicCache", 1.2, "speed")
    assert target.describe((1.3, 1.2, 1.4)).startswith("met: ")
    assert target.describe((1.2, 1.1, 1.3)).startswith("inconclusive: ")
    assert target.describe((1.0, 0.9, 1.1)).startswith("not met: ")
