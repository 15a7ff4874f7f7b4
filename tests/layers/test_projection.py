"""What every projection and every feed-forward promises, whatever its formula."""

import math

import pytest
import torch

from formerlab.layers import Mlp, Pattention
from formerlab.layers.initial import initialise


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
