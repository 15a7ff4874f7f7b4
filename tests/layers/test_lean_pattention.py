"""The memory-efficient Pattention: formula, saved activations, autocast, compilation and transforms."""

import copy
import math

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from formerlab.layers import Pattention, pattention
from formerlab.layers.pattention import lean_pattention
from formerlab.layers.score import l2_gelu

TOKENS, D_IN, D_OUT = 24, 6, 5
TAU = math.sqrt(TOKENS)
INPUTS = ("x", "keys", "values")


def formula(x, keys, values, tau):
    return l2_gelu(x @ keys.T, tau) @ values


def mlp(x, keys, values, tau):
    del tau
    return F.linear(F.gelu(F.linear(x, keys)), values.T)


def random_inputs(*batch, dtype=torch.float64, tokens=TOKENS):
    generator = torch.Generator().manual_seed(1)
    shapes = ((*batch, D_IN), (tokens, D_IN), (tokens, D_OUT))
    tensors = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def gradients(function, inputs, tau=TAU):
    """Return the output and the gradients of a loss with a different weight for every output."""
    y = function(*inputs, tau)
    weight = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return y.detach(), torch.autograd.grad((y * weight.to(y.dtype)).sum(), inputs)


def saved_bytes(function, inputs):
    """Return the bytes of saved activations, without inputs and parameters."""
    input_addresses = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    saved = {}

    def record(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in input_addresses:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        y = function(*inputs, TAU)
    del y
    return sum(saved.values())


@pytest.mark.parametrize("batch", [(), (7,), (2, 3, 4), (0,)])
@pytest.mark.parametrize("tau", [TAU, 0.3])
def test_values_and_gradients_match_the_formula(batch, tau):
    inputs = random_inputs(*batch)
    y, actual = gradients(lean_pattention, inputs, tau)
    expected, expected_gradients = gradients(formula, inputs, tau)
    assert torch.equal(y, expected)
    for name, gradient, expected_gradient in zip(INPUTS, actual, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-12, rtol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lean_pattention_saves_half_the_activations_of_an_mlp(dtype):
    """Lean Pattention saves the normalised products and a number per row; an MLP saves two numbers per hidden unit."""
    inputs = random_inputs(16, dtype=dtype)
    assert saved_bytes(mlp, inputs) == 2 * 16 * TOKENS * dtype.itemsize
    assert 0 < saved_bytes(lean_pattention, inputs) - 16 * TOKENS * dtype.itemsize <= 16 * 4
    assert saved_bytes(formula, inputs) > 2 * saved_bytes(lean_pattention, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_autocast_casts_as_for_a_matrix_product(dtype):
    """Output and gradients have the dtypes of the formula under autocast; float64 stays float64."""
    inputs = random_inputs(64, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y, actual = gradients(lean_pattention, inputs)
        reference, expected_gradients = gradients(formula, inputs)
    assert y.dtype == reference.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
    for tensor, expected in zip((y, *actual), (reference, *expected_gradients), strict=True):
        assert tensor.dtype == expected.dtype
        assert (tensor - expected).norm() < 0.03 * expected.norm()


def test_backward_runs_outside_autocast_and_twice():
    inputs = random_inputs(8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = lean_pattention(*inputs, TAU).float().square().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    assert all(map(torch.equal, first, second))


def test_lean_pattention_compiles_to_one_graph_with_the_same_saved_activations(unchecked_shapes):
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager_decomp_partition")
    compiled = torch.compile(lean_pattention, backend=counter, fullgraph=True)
    inputs = random_inputs(16, dtype=torch.float32)
    y, actual = gradients(compiled, inputs)
    expected, expected_gradients = gradients(lean_pattention, inputs)
    torch.testing.assert_close((y, *actual), (expected, *expected_gradients), atol=1e-5, rtol=1e-4)
    assert saved_bytes(compiled, inputs) == saved_bytes(lean_pattention, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = gradients(compiled, inputs)
    assert y.dtype == torch.bfloat16
    assert (y - expected).norm() < 0.03 * expected.norm()
    assert counter.frame_count == 2


class Products(TorchDispatchMode):
    """Record the sizes of the operands of every matrix product."""

    def __init__(self):
        super().__init__()
        self.operands = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.mm.default:
            self.operands += [tuple(operand.shape) for operand in args]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("tokens", [24, 64, 2140])
def test_padding_for_tensor_cores_does_not_change_results(tokens, monkeypatch):
    inputs = random_inputs(3, 5, dtype=torch.float64, tokens=tokens)
    y, expected = gradients(lean_pattention, inputs)
    monkeypatch.setattr(pattention, "_uses_tensor_cores", lambda x: True)
    with Products() as products:
        padded, actual = gradients(lean_pattention, inputs)
    torch.testing.assert_close(padded, y, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert len(products.operands) == 2 * 6
    sizes = {size for shape in products.operands for size in shape} - {15, D_IN, D_OUT}
    assert sizes == {-(-tokens // 64) * 64}


@pytest.mark.parametrize("score", ["l2_gelu", "gelu_l2"])
def test_torch_func_matches_plain_values_and_gradients(score):
    """The test covers ensembles, per-sample gradients, forward mode and second derivatives."""
    layers = [Pattention(tokens=9, score=score).build(4, 6).double() for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(layers)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    call = lambda weights, x: torch.func.functional_call(layers[0], weights, (x,))  # noqa: E731
    expected_outputs = torch.stack([layer(rows) for layer, rows in zip(layers, x, strict=True)])
    torch.testing.assert_close(torch.vmap(call)(stacked, x), expected_outputs)
    torch.testing.assert_close(torch.vmap(layers[0])(x), layers[0](x))
    loss = lambda weights, x: call(weights, x).square().sum()  # noqa: E731
    by_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(layers[0].named_parameters()), x)
    for row in range(3):
        expected = torch.autograd.grad(layers[0](x[row]).square().sum(), list(layers[0].parameters()))
        torch.testing.assert_close([grad[row] for grad in by_sample.values()], list(expected))
    forward, reverse = (jacobian(layers[0])(x[0, 0]) for jacobian in (torch.func.jacfwd, torch.func.jacrev))
    torch.testing.assert_close(forward, reverse)
    torch.func.hessian(lambda row: layers[0](row).sum())(x[0, 0])


@pytest.mark.parametrize("name", ["keys", "values"])
def test_parametrize_works_on_keys_and_values(name):
    layer, x = Pattention(tokens=9).build(4, 6), torch.randn(5, 4)
    expected, other = layer(x), "values" if name == "keys" else "keys"
    for weight in (name, other):
        parametrize.register_parametrization(layer, weight, nn.Identity())
    assert torch.equal(layer(x), expected)
    assert set(layer.state_dict()) == {f"parametrizations.{weight}.original" for weight in ("keys", "values")}
    copy.deepcopy(layer)(x).sum().backward()
    parametrize.remove_parametrizations(layer, name)
    assert parametrize.is_parametrized(layer, other)
    assert torch.equal(layer(x), expected)
    nn.utils.parametrizations.weight_norm(layer, name)
    torch.testing.assert_close(layer(x), expected)


def test_a_printed_layer_shows_its_sizes():
    assert repr(Pattention(tokens=9).build(4, 6)) == "PattentionLayer(4, 6, tokens=9, score='l2_gelu', tau=3)"
