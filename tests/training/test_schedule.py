"""Schedules against closed forms and torch. tests/plan/test_transformer_study.py tests Noam."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from variation import label, settings

from formerlab.spec import variants
from formerlab.training.schedule import Cosine, OneCycle, Schedule

FRACTIONS = st.floats(0.0, 0.99)


def curve(schedule, steps):
    return [schedule.factor(step, steps) for step in range(steps)]


@pytest.mark.parametrize("schedule", settings(Schedule), ids=label)
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_factors_of_all_schedules_are_between_0_and_1(schedule, steps):
    assert all(0.0 < factor <= 1.0 for factor in curve(schedule, steps))


@pytest.mark.parametrize("kind", [kind for kind in variants(Schedule) if "warmup" in kind.model_fields])
@given(warmup=FRACTIONS, steps=st.integers(1, 300))
def test_a_warm_up_rises_to_the_peak(kind, warmup, steps):
    factors = curve(kind(warmup=warmup), steps)
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert all(0.0 < factor <= 1.0 for factor in factors)


@pytest.mark.parametrize("steps", [7, 21, 400])  # torch's schedule divides by zero at 20 steps and a fraction of 0.05
@pytest.mark.parametrize("warmup", [0.05, 0.3, 0.5])
@pytest.mark.parametrize(("start", "end"), [(100.0, 10.0), (25.0, 1e4), (1.0, 1.0)])
def test_onecycle_matches_torch(steps, warmup, start, end):
    """In torch the last rate is a fraction of the first: peak / start_division / final_div_factor."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.3, total_steps=steps, pct_start=warmup, div_factor=start, final_div_factor=end / start
    )
    schedule = OneCycle(warmup=warmup, start_division=start, end_division=end)
    for step in range(steps):
        assert 0.3 * schedule.factor(step, steps) == pytest.approx(reference.get_last_lr()[0], rel=1e-12), step
        optimizer.step()
        if step < steps - 1:
            reference.step()


def test_cosine_values():
    """The factor rises by 0.1 in each of 10 steps, is half way to the floor at step 55, and ends at the floor."""
    factors = curve(Cosine(warmup=0.1, floor=0.2), 101)
    assert factors[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.6)
    assert factors[-1] == 0.2
