import pytest
import torch

from formerlab.layers import LayerNorm, RMSNorm


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layernorm_is_its_formula(eps):
    layer = LayerNorm(eps=eps).build(6).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 6, dtype=torch.float64) * 2 + 3
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * layer.gain + layer.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rmsnorm_is_its_formula(eps):
    layer = RMSNorm(eps=eps).build(6).double()
    torch.nn.init.normal_(layer.gain)
    x = torch.randn(5, 6, dtype=torch.float64) * 2 + 3
    torch.testing.assert_close(layer(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * layer.gain)
