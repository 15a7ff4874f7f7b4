import pytest
import torch

from formerlab.layers import LayerNorm, RMSNorm


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_a_norm_is_its_formula(kind, eps):
    layer = kind(eps=eps).build(6).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 6, dtype=torch.float64) * 2 + 3
    mean, bias = (x.mean(-1, keepdim=True), layer.bias) if kind is LayerNorm else (0.0, 0.0)
    expected = (x - mean) / ((x - mean).square().mean(-1, keepdim=True) + eps).sqrt() * layer.gain + bias
    torch.testing.assert_close(layer(x), expected)
