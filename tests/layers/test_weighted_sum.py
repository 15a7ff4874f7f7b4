"""Weighted sums match the formula, and unsupported tensors use the torch implementation."""

import pytest
import torch

from formerlab.kernels import weighted_sum

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("size", [1, 4096, 9001])
def test_sums_and_products_match_the_formula(dtype, count, size):
    tensors = [torch.randn(size).to(dtype) for _ in range(count)]
    x, direct, weights = torch.randn(size).to(dtype), torch.randn(size).to(dtype), torch.randn(count).tolist()
    exact = [t.double() for t in tensors]
    expected = sum(w * t for w, t in zip(weights, exact, strict=True))
    torch.testing.assert_close(weighted_sum.weighted_sum(tensors, weights), expected.to(dtype), atol=1e-5, rtol=1e-2)
    for summand in (direct, None):
        total, products = weighted_sum.weighted_sum_and_products(tensors, weights, x, summand)
        offset = 0 if summand is None else summand.double()
        torch.testing.assert_close(total, (expected + offset).to(dtype), atol=1e-5, rtol=1e-2)
        expected_products = [(t * x.double()).sum().item() for t in exact]
        assert products == pytest.approx(expected_products, rel=1e-4, abs=1e-3)
    assert weighted_sum.weighted_sum_and_products(tensors, weights, None, direct)[1] == []


def test_the_sum_does_not_depend_on_the_number_of_threads():
    tensors, weights = [torch.randn(70_000) for _ in range(5)], torch.randn(5).tolist()
    total, products = weighted_sum.weighted_sum_and_products(tensors, weights, tensors[0], None)
    torch.set_num_threads(2)
    two_threads = weighted_sum.weighted_sum_and_products(tensors, weights, tensors[0], None)
    assert torch.equal(total, two_threads[0])
    if weighted_sum.sums_implementation() == "native":
        assert products == two_threads[1]


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(4, 4).T, torch.randn(4, 4).half(), torch.randn(4, 4, device="meta")],
    ids=["strided", "half", "meta"],
)
def test_unsupported_tensors_use_the_torch_implementation(tensor):
    assert not weighted_sum._fits([tensor], tensor.dtype)
    assert weighted_sum._fits([torch.randn(4, 4)], torch.float32)
    assert not weighted_sum._fits([torch.randn(4, 4), torch.randn(4, 4).bfloat16()], torch.float32)
    assert weighted_sum.weighted_sum([tensor, tensor], [1.0, 2.0]).shape == (4, 4)
