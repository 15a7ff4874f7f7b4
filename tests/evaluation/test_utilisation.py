"""Measured FLOP/s, model FLOPs utilisation and peak memory."""

import pytest
import torch

from formerlab.training.provenance import matmul_flops_per_s, model_flops_utilisation, peak_memory_bytes


def test_utilisation_is_a_fraction_of_the_measured_rate():
    rate = matmul_flops_per_s()
    assert rate > 0
    assert model_flops_utilisation(rate, 2.0, rate) == pytest.approx(0.5)
    assert model_flops_utilisation(rate, 2.0, rate, devices=4) == pytest.approx(0.125)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_rate_is_measured_in_the_requested_precision(precision, monkeypatch):
    dtypes, matmul = set(), torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: dtypes.update((a.dtype, b.dtype)) or matmul(a, b))
    matmul_flops_per_s(precision=precision)
    assert dtypes == {getattr(torch, precision)}


def test_peak_memory_includes_allocated_tensors():
    earlier_peak = peak_memory_bytes()
    tensor = torch.ones((earlier_peak >> 2) + (64 << 20))  # 256 MiB more than the process ever used
    assert earlier_peak + (200 << 20) < peak_memory_bytes() < 2 * earlier_peak + (2 << 30)
    del tensor
