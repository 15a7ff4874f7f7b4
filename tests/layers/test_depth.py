"""What every depth mixer promises, whatever its formula."""

import copy

import pytest
import torch
from variation import counted_params, label, settings

from formerlab.layers import DepthMixer, DepthWeightedAverage
from formerlab.layers.initial import initialise

SPECS = [*settings(DepthMixer), DepthWeightedAverage(dilation=2, period=3), DepthWeightedAverage(dilation=4, period=5)]
every_mixer = pytest.mark.parametrize("spec", SPECS, ids=label)


def outputs(mixer, streams):
    """Return [Y_1, Y_2, ...] for [X_0, X_1, ...]."""
    history = mixer.begin(streams[0])
    return [mixer.mix(index, x, history) for index, x in enumerate(streams[1:], start=1)]


@every_mixer
def test_closed_form_equals_what_pytorch_counts(spec):
    for layers in (1, 5, 12):
        assert counted_params(spec.build(layers)) == spec.params(layers)


@every_mixer
def test_it_starts_as_the_identity_to_the_bit(spec):
    mixer = spec.build(12)
    initialise(mixer, 0)
    streams = [torch.randn(2, 3, 4) for _ in range(13)]
    assert all(torch.equal(y, x) for y, x in zip(outputs(mixer, streams), streams[1:], strict=True))


@every_mixer
def test_the_multiplications_are_those_of_the_closed_form(spec):
    mixer, shape = spec.build(12), (2, 3, 4)
    initialise(mixer, 0)
    with CountMultiplications() as counter:
        outputs(mixer, [torch.randn(shape) for _ in range(13)])
    assert 2 * counter.elements == 2 * 3 * spec.flops(12, width=4)


@every_mixer
def test_a_forward_pass_leaves_no_state_behind(spec):
    mixer = spec.build(3)
    initialise(mixer, 0)
    streams = [torch.randn(1, 2, 4, requires_grad=True) for _ in range(4)]
    first = outputs(mixer, streams)
    assert [name for name, value in vars(copy.deepcopy(mixer)).items() if isinstance(value, torch.Tensor)] == []
    assert all(torch.equal(a, b) for a, b in zip(first, outputs(mixer, streams), strict=True))


class CountMultiplications(torch.utils._python_dispatch.TorchDispatchMode):
    """Count the elements that multiplications give."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.mul.Tensor:
            self.elements += out.numel()
        return out
