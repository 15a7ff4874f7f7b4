"""What every projection and every feed-forward promises, whatever its formula."""

import math

import pytest
import torch
from variation import label

from formerlab.layers import Linear, Mlp, Pattention
from formerlab.layers.initial import initialise


@pytest.mark.parametrize("spec", [Linear(), Linear(scale_residual=False), Linear(std=0.1)], ids=label)
@pytest.mark.parametrize("residual", [True, False])
def test_linear_weights_start_with_their_standard_deviation(spec, residual):
    layer = spec.build(300, 300, layers=8, residual=residual)
    initialise(layer, 0)
    expected = spec.std / math.sqrt(2 * 8) if residual and spec.scale_residual else spec.std
    assert layer.weight.std().item() == pytest.approx(expected, rel=0.02)


def test_mlp_weights_start_with_their_standard_deviation():
    layer = Mlp(bias=True).build(128, 128, layers=8, residual=True)
    initialise(layer, 0)
    assert layer.inner.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.outer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert layer.inner.bias.eq(0).all()
    assert layer.outer.bias.eq(0).all()


@pytest.mark.parametrize(
    ("init", "key_std", "value_std"),
    [
        ("fan_in", 100**-0.5, 400**-0.5),
        ("fan_in_truncated", 100**-0.5, 400**-0.5),
        ("neox", 0.02, 2 / (6 * 15)),
    ],
)
def test_parameter_tokens_start_with_their_standard_deviations(init, key_std, value_std):
    layer = Pattention(tokens=400, init=init).build(100, 225, layers=6)
    initialise(layer, 0)
    assert layer.keys.std().item() == pytest.approx(key_std, rel=0.02)
    assert layer.values.std().item() == pytest.approx(value_std, rel=0.02)
    assert (layer.keys.abs().max().item() > 2.5 * key_std) == (init != "fan_in_truncated")


@pytest.mark.parametrize("d", [48, 50, 64])
def test_swiglu_keeps_the_parameters_of_the_plain_feedforward(d):
    hidden = Mlp(activation="swiglu").width(d)
    assert hidden % 8 == 0
    assert 0 <= hidden - 8 * d / 3 < 8
    assert Mlp().width(d) == 4 * d
    assert Mlp(activation="swiglu", hidden=7).width(d) == 7


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_the_feedforward_is_its_formula(activation):
    layer = Mlp(activation=activation, hidden=10, bias=True).build(6, 6).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(4, 6, dtype=torch.float64)
    inner = x @ layer.inner.weight.T + layer.inner.bias
    if activation == "gelu":
        hidden = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    elif activation == "relu":
        hidden = inner.clamp_min(0)
    else:
        hidden = inner / (1 + torch.exp(-inner)) * (x @ layer.gate.weight.T + layer.gate.bias)
    torch.testing.assert_close(layer(x), hidden @ layer.outer.weight.T + layer.outer.bias)
