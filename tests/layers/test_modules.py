"""Norms and feed-forwards match their formulas; parameter tokens have the documented initial values.

tests/models compares attention with other libraries.
"""

import math

import pytest
import torch

from formerlab.layers import LayerNorm, Mlp, Pattention, RMSNorm
from formerlab.layers.initialization import initialise


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms_match_their_formulas(kind, eps):
    layer = kind(eps=eps).build(6).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 6, dtype=torch.float64) * 2 + 3
    mean, bias = (x.mean(-1, keepdim=True), layer.bias) if kind is LayerNorm else (0.0, 0.0)
    expected = (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt() * layer.gain + bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize(
    ("init", "key_std", "value_std"),
    [("fan_in", 100**-0.5, 400**-0.5), ("fan_in_truncated", 100**-0.5, 400**-0.5), ("neox", 0.02, 2 / (6 * 15))],
)
def test_parameter_tokens_start_with_their_standard_deviations(init, key_std, value_std):
    layer = Pattention(tokens=400, init=init).build(100, 225, layers=6)
    initialise(layer, 0)
    assert layer.keys.std().item() == pytest.approx(key_std, rel=0.02)
    assert layer.values.std().item() == pytest.approx(value_std, rel=0.02)
    assert (layer.keys.abs().max().item() > 2.5 * key_std) == (init != "fan_in_truncated")


@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
def test_the_feedforward_matches_its_formula(activation):
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
