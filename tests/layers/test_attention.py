import pytest
import torch
from variation import label, settings

from formerlab.layers import Linear, NoPosition, Projection
from formerlab.layers.attention import Attention, causal_attention
from formerlab.layers.initial import initialise
from formerlab.layers.position import PositionEncoding


def test_heads_are_those_of_pytorchs_multi_head_attention():
    attention = Attention(12, 3, Linear(bias=True), layers=1).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    oracle = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        inputs = (attention.query, attention.key, attention.value)
        oracle.in_proj_weight.copy_(torch.cat([projection.weight for projection in inputs]))
        oracle.in_proj_bias.copy_(torch.cat([projection.bias for projection in inputs]))
        oracle.out_proj.load_state_dict(attention.output.state_dict())
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    expected, _ = oracle(x, x, x, attn_mask=torch.ones(6, 6).triu(1).bool(), need_weights=False)
    torch.testing.assert_close(attention(x, PositionEncoding(), causal_attention, 0, 0), expected)


@pytest.mark.parametrize("projection", settings(Projection), ids=label)
def test_what_is_attended_with_is_an_argument(projection):
    """Layer, positions and head shapes reach `attend`, and its answer alone is projected."""
    attention = Attention(12, 3, projection, layers=1)
    initialise(attention, 0)
    seen = []

    def first_value(layer, q, k, v):
        seen.append((layer, q.shape, k.shape, v.shape))
        return v[:, :, :1].expand_as(v)

    x = torch.randn(2, 6, 12)
    y = attention(x, NoPosition().build(6, 12, 4), first_value, 5, 0)
    assert seen == [(5, *[(2, 3, 6, 4)] * 3)]
    torch.testing.assert_close(y, y[:, :1].expand_as(y))
