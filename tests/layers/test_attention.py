import torch

from formerlab.layers import Linear
from formerlab.layers.attention import Attention, causal_attention
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
