"""The fused loss equals the cross-entropy of the logits and stores no logits."""

import pytest
import torch
from torch.nn import functional as F

from formerlab.layers import linear_cross_entropy as module
from formerlab.layers.linear_cross_entropy import linear_cross_entropy

ROWS, WIDTH, VOCABULARY = 13, 6, 40


def random_inputs(dtype=torch.float64):
    x, weight = (torch.randn(size, WIDTH, dtype=torch.float64).to(dtype) for size in (ROWS, VOCABULARY))
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(VOCABULARY, (ROWS,))


def plain_loss(x, weight, targets):
    logits = F.linear(x, weight)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def with_gradients(loss, inputs):
    value = loss(*inputs)
    return value.detach(), *torch.autograd.grad(0.25 * value, inputs[:2])


@pytest.mark.parametrize("slice_of", [1, 5, 2**20])
def test_chunks_of_any_size_match_the_formula(slice_of, monkeypatch):
    """The test compares loss and gradients for one row, five rows and all rows per chunk."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", slice_of * VOCABULARY)
    inputs = random_inputs()
    for actual, expected in zip(
        with_gradients(linear_cross_entropy, inputs), with_gradients(plain_loss, inputs), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_summed_in_float32(autocast):
    """Gradients have the dtypes of weights and inputs, in bfloat16 and under autocast."""
    inputs = random_inputs(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual, expected = with_gradients(linear_cross_entropy, inputs), with_gradients(plain_loss, inputs)
    assert actual[0].dtype == torch.float32
    for gradient, expected_gradient, tensor in zip(actual[1:], expected[1:], inputs, strict=False):
        assert gradient.dtype == expected_gradient.dtype == tensor.dtype
        assert (gradient - expected_gradient).norm() <= 0.02 * expected_gradient.norm()


def test_backward_runs_twice_and_saves_no_logits():
    x, weight, targets = random_inputs()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: sizes.append(tensor.numel()) or tensor, lambda t: t):
        loss = linear_cross_entropy(x, weight, targets)
    assert max(sizes) < ROWS * VOCABULARY
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, (x, weight))))


def test_compiled_logits_are_computed_in_bounded_chunks(monkeypatch, unchecked_shapes):
    """There are seven rows, and at most two rows per product."""
    monkeypatch.setattr(module, "COMPILED_LOGITS", 10)
    x, weight, targets = torch.randn(7, 3), torch.randn(5, 3), torch.randint(0, 5, (7,))
    rows = []

    def counting(graph, inputs):
        del inputs
        rows.extend(node.meta["example_value"].shape[0] for node in graph.graph.nodes if "linear" in str(node.target))
        return graph

    actual = torch.compile(module.linear_cross_entropy, backend=counting)(x, weight, targets)
    assert rows == [2, 2, 2, 1]
    torch.testing.assert_close(actual, torch.nn.functional.cross_entropy(x @ weight.T, targets))


def test_targets_must_match_the_rows(unchecked_shapes):
    with pytest.raises(ValueError, match="3 targets for 4 rows"):
        linear_cross_entropy(torch.zeros(4, 2), torch.zeros(5, 2), torch.zeros(3, dtype=torch.long))
