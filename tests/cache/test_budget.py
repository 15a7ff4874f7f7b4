"""Budgets are rounded by one rule for all policies."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formerlab.cache import H2O, PrunedCache, Simulation, resolve_budget
from formerlab.cache.budget import UNLIMITED
from formerlab.errors import UserError


@pytest.mark.parametrize(
    ("budget", "length", "expected"),
    [(0.4, 16, 6), (0.5, 5, 3), (0.29, 50, 15), (0.4, 1, 0), (1.0, 7, UNLIMITED), (1, 7, 1), (6, 3, 6), (0.025, 20, 1)],
)
def test_budgets_resolve_to_counts(budget, length, expected):
    assert resolve_budget(budget, length) == expected


@settings(deadline=None, derandomize=True)
@given(length=st.integers(1, 5000), percent=st.integers(1, 99))
def test_fractions_round_half_up(length, percent):
    assert resolve_budget(percent / 100, length) == (2 * percent * length + 100) // 200


@pytest.mark.parametrize("budget", [np.int64(16), np.uint8(16), np.array(16), torch.tensor(16)])
def test_numpy_and_torch_counts_are_accepted(budget):
    assert resolve_budget(budget, 50) == 16
    assert PrunedCache(H2O(), budget).budget == 16


@pytest.mark.parametrize("budget", [np.float32(0.29), np.float16(0.29), np.float64(0.29), torch.tensor(0.29)])
def test_low_precision_fractions_use_their_printed_value(budget):
    assert resolve_budget(budget, 50) == resolve_budget(0.29, 50) == 15
    assert repr(Simulation(H2O(), budget).budget) == "0.29"


@pytest.mark.parametrize(
    "budget", [0, -1, 0.0, 1.5, True, float("nan"), np.bool_(True), np.array([16]), np.float32("nan"), np.int64(0)]
)
def test_invalid_budgets_are_refused_with_their_value(budget):
    with pytest.raises(UserError, match=r"^budget .*: give a count of keys .* or a fraction \(a float in"):
        resolve_budget(budget, 50)
