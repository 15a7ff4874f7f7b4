"""How many operations a decoded token takes off the CPU: a GPU starts each of them, which bounds decoding."""

import torch
from estimates import launches
from torch.nn import functional as F

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import DepthWeightedAverage
from formerlab.layers.depth.attention_residuals import AttentionResiduals, stacked_attention

LAYERS, LONG = 12, 48


def test_a_token_takes_few_launches():
    plain = launches(KVCache(), LAYERS)
    assert plain <= 25 * LAYERS
    assert launches(PrunedCache(Decay(), 2), LAYERS) <= 37 * LAYERS


def test_an_average_over_depth_takes_two_launches_at_any_depth():
    """Streams added one after another took 1273 in 48 blocks."""
    mixing = launches(KVCache(), LONG, depth=DepthWeightedAverage()) - launches(KVCache(), LONG)
    assert mixing <= 2 * LONG + 2


def test_attention_over_depth_takes_few_launches_at_any_depth_and_is_the_same():
    """Sources added one after another took 19 493 in 48 blocks."""
    mixing = launches(KVCache(), LAYERS, depth=AttentionResiduals()) - launches(KVCache(), LAYERS)
    assert mixing <= 2 * 12 * LAYERS
    values = torch.randn(5, 2, 1, 8).unbind()
    keys, query = tuple(F.rms_norm(value, (8,)) for value in values), torch.randn(8)
    weights = torch.stack([(key * query).sum(-1) for key in keys]).softmax(0)
    wanted = sum(weight[..., None] * value for weight, value in zip(weights, values, strict=True))
    torch.testing.assert_close(stacked_attention(values, keys, query), wanted)
