"""Properties of every depth mixer."""

import gc
import weakref

import pytest
import torch
from variation import counted_params, label, perturb, settings

from formerlab.errors import UserError
from formerlab.layers import (
    AttentionResiduals,
    ConnectToLast,
    DepthMixer,
    DepthWeightedAverage,
    DynamicDense,
    DynamicHyperConnections,
    Identity,
    ManifoldHyperConnections,
    Mixer,
    RandomSparse,
    StaticHyperConnections,
)
from formerlab.layers.depth.dwa import Averages
from formerlab.layers.initialization import initialise

SPECS = [
    *settings(DepthMixer),
    DepthWeightedAverage(dilation=2, period=3),
    DepthWeightedAverage(dilation=4, period=5),
    ConnectToLast(others=0.0),
    RandomSparse(density=0.5),
    AttentionResiduals(block_size=4),
    DynamicDense(dilation=2, period=3),
    StaticHyperConnections(streams=1),
    DynamicHyperConnections(streams=1),
    ManifoldHyperConnections(streams=2, iterations=3),
]
LAYERS, WIDTH = 12, 4
every_mixer = pytest.mark.parametrize("spec", SPECS, ids=label)


def built(spec, layers=LAYERS, *, perturbed=False):
    mixer = spec.build(layers, WIDTH)
    initialise(mixer, 0)
    return perturb(mixer, 0.3) if perturbed else mixer


def stack(mixer, x, updates, calls=None):
    """Return [Y_1, Y_2, ...] of blocks whose sub-layers return updates that depend on x."""
    x, history = mixer.begin(x)

    def block(index, x):
        h = mixer.add(2 * index - 1, x, updates[2 * index - 2] * x, history)
        return mixer.add(2 * index, h, updates[2 * index - 1] * h, history)

    outputs = []
    for index in range(1, len(updates) // 2 + 1):
        raw = block(index, x) if calls is None else calls(block, index, x)
        x = mixer.mix(index, raw, history)
        outputs.append(x)
    return outputs


def inputs(layers=LAYERS, **options):
    return torch.randn(2, 3, WIDTH, **options), [torch.randn(2, 3, WIDTH, **options) for _ in range(2 * layers)]


def test_mixers_that_need_a_width_refuse_to_build_without_it():
    for spec in (ManifoldHyperConnections(), DynamicHyperConnections(), AttentionResiduals(), DynamicDense()):
        with pytest.raises(UserError, match="its size depends on the width; give width="):
            spec.build(layers=3)
    DepthWeightedAverage().build(layers=3)


@every_mixer
def test_expected_mixers_start_bit_identical_to_the_plain_stack(spec):
    x, updates = inputs()
    mixed, plain = (stack(built(depth), x, updates) for depth in (spec, Identity()))
    starts_plain = {
        "connect_to_last": getattr(spec, "others", 0.0) == 0,
        "static_hyper_connections": getattr(spec, "streams", 1) == 1,
        "dynamic_hyper_connections": getattr(spec, "streams", 1) == 1,
        **dict.fromkeys(("attention_residuals", "manifold_hyper_connections", "softmax"), False),
    }
    assert all(map(torch.equal, mixed, plain)) == starts_plain.get(spec.kind, True)


class Stack(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, x, *updates):
        return tuple(stack(self.mixer, x, updates))


@every_mixer
def test_gradients_match_finite_differences(spec):
    mixer = Stack(built(spec, layers=4, perturbed=True).double())
    x, updates = inputs(layers=4, dtype=torch.float64, requires_grad=True)
    needs_width = any(parameter.ndim > 1 and parameter.shape[1] % WIDTH == 0 for parameter in mixer.parameters())
    width = WIDTH if needs_width else 2
    small = [tensor.detach()[:1, :1, :width].clone().requires_grad_() for tensor in (x, *updates)]
    names, values = zip(*mixer.named_parameters(), strict=True) if counted_params(mixer) else ((), ())

    def function(*tensors):
        parameters = dict(zip(names, tensors[len(small) :], strict=True))
        return torch.func.functional_call(mixer, parameters, tuple(tensors[: len(small)]))

    # a random direction instead of every entry of the Jacobian
    assert torch.autograd.gradcheck(function, (*small, *values), fast_mode=True)


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_residual_stream_keeps_its_dtype(spec, dtype):
    x, updates = inputs(dtype=dtype)
    outputs = stack(built(spec).to(dtype), x.requires_grad_(), updates)
    assert {y.dtype for y in outputs} == {dtype}
    outputs[-1].sum().backward()
    assert x.grad.dtype == dtype


@every_mixer
def test_autocast_keeps_the_residual_stream_in_float32(spec):
    """In the released code of DenseFormer the sums become bfloat16 under autocast."""
    mixer = built(spec, perturbed=True)
    x, updates = inputs()
    updates = [update.bfloat16() for update in updates]
    expected = stack(mixer, x, updates)[-1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = stack(mixer, x, updates)[-1]
    assert mixed.dtype == torch.float32
    if not isinstance(spec, DynamicDense):  # its small network computes in bfloat16
        torch.testing.assert_close(mixed, expected)


@every_mixer
def test_a_step_frees_all_its_tensors(spec):
    mixer = built(spec)
    x, updates = inputs()
    gc.disable()  # a reference cycle would keep a graph until garbage collection
    try:
        outputs = stack(mixer, x.requires_grad_(), updates)
        alive = [weakref.ref(y) for y in outputs]
        loss = outputs[-1].sum()
        loss.backward()
        del outputs, loss
        assert [reference() for reference in alive] == [None] * LAYERS
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.kind != "mudd" and isinstance(spec, Averages)], ids=label
)
def test_recorded_weights_equal_the_mixing_weights(spec):
    mixer, streams = built(spec, perturbed=True), torch.randn(LAYERS + 1)
    _, history = mixer.begin(streams[0].expand(1, 1, WIDTH))
    mixed = [mixer.mix(i, streams[i].expand(1, 1, WIDTH), history) for i in range(1, LAYERS + 1)]
    expected = {i: 0.0 for i, _, _ in mixer.weights()}
    for i, j, weight in mixer.weights():
        expected[i] += weight * streams[j]
    for i, value in expected.items():
        torch.testing.assert_close(mixed[i - 1][0, 0, 0], value)


@every_mixer
def test_indices_of_sub_layers_and_blocks_start_at_1(spec):
    """A caller that counts from 0 would get other averages, so the mixer refuses index 0."""
    acts_on_additions = type(built(spec)).add is not Mixer.add
    for call, count, unit in (("add", 2 * LAYERS, "sub-layer"), ("mix", LAYERS, "block")):
        if (call == "add") != acts_on_additions or type(spec) is Identity:
            continue
        for index in (0, -1, count + 1):
            x, history = (mixer := built(spec)).begin(torch.ones(1, 2, WIDTH))
            arguments = (x, x, history) if call == "add" else (x, history)
            with pytest.raises(ValueError, match=f"{unit} {index} of {count}: {unit}s are numbered from 1 to {count}"):
                getattr(mixer, call)(index, *arguments)


@pytest.mark.parametrize("spec", [DepthWeightedAverage(), DynamicDense()], ids=label)
def test_a_skipped_or_repeated_block_gives_an_error_with_the_block_index(spec):
    mixer = built(spec)
    mixer.fused = False
    x, history = mixer.begin(torch.ones(1, 2, WIDTH))
    mixer.mix(1, x, history)
    for index in (1, 3):
        message = rf"mix\(\) got block {index}, expected block 2: call it once per block, in order"
        with pytest.raises(ValueError, match=message):
            mixer.mix(index, x, history)


@pytest.mark.usefixtures("unchecked_shapes")
@every_mixer
def test_torch_func_matches_plain_calls(spec):
    mixer, updates = built(spec, perturbed=True).double(), torch.rand(2 * LAYERS, WIDTH, dtype=torch.float64)
    x = torch.randn(3, 2, 5, WIDTH, dtype=torch.float64)
    last = lambda x: stack(mixer, x, updates)[-1]  # noqa: E731
    torch.testing.assert_close(torch.vmap(last)(x), torch.stack([last(sample) for sample in x]))
    expected = torch.stack([torch.autograd.functional.jacobian(lambda y: last(y).sum(), sample) for sample in x])
    torch.testing.assert_close(torch.vmap(torch.func.grad(lambda y: last(y).sum()))(x), expected)
