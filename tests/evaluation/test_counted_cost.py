import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from formerlab.tasks.task import TRAINING_PASSES
from formerlab.training.provenance import matmul_flops_per_s, model_flops_utilisation, peak_memory_bytes


def test_costs_per_token_are_those_of_a_counted_pass(spec):
    model = spec.build().to("meta")
    tokens = torch.zeros(1, 32, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        loss = model(tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert spec.flops(32) == forward
    assert counter.get_total_flops() == TRAINING_PASSES * forward
    assert spec.params() == sum(parameter.numel() for parameter in model.parameters())
    assert spec.params() - spec.params(embedding=False) == spec.vocabulary * spec.width


def test_utilisation_is_a_share_of_the_measured_rate():
    rate = matmul_flops_per_s()
    assert rate > 0
    assert model_flops_utilisation(rate, 2.0, rate) == pytest.approx(0.5)
    assert model_flops_utilisation(rate, 2.0, rate, devices=4) == pytest.approx(0.125)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_rate_is_that_of_products_of_the_precision_in_question(precision, monkeypatch):
    seen, matmul = set(), torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b: seen.update((a.dtype, b.dtype)) or matmul(a, b))
    matmul_flops_per_s(precision=precision)
    assert seen == {getattr(torch, precision)}


def test_peak_memory_grows_with_what_is_held():
    before = peak_memory_bytes()
    held = torch.ones((before >> 2) + (64 << 20))  # more than the process ever held, by 256 MiB
    assert before + (200 << 20) < peak_memory_bytes() < 2 * before + (2 << 30)
    del held
