import pytest
import torch
from variation import counted_params, label, settings

from formerlab.layers import LayerNorm, Norm, RMSNorm

every_norm = pytest.mark.parametrize("spec", settings(Norm), ids=label)


@every_norm
def test_closed_form_equals_what_pytorch_counts(spec):
    assert counted_params(spec.build(12)) == spec.params(12)


@every_norm
def test_it_starts_without_gain_and_bias(spec):
    plain = {name: False for name in ("gain", "bias") if name in type(spec).model_fields}
    x = torch.randn(3, 4, 12) * 3 + 1
    assert torch.equal(spec.build(12)(x), spec.model_copy(update=plain).build(12)(x))


@every_norm
def test_every_token_is_normalised_by_itself(spec):
    layer = spec.build(12)
    x = torch.randn(3, 4, 12)
    torch.testing.assert_close(layer(x)[1, 2], layer(x[1, 2]))


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
