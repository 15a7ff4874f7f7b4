"""Number of operations per decoded token. A GPU launches one kernel per operation, which limits the decoding speed."""

import pytest
import torch
from estimates import launches
from torch.nn import functional as F

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import DepthWeightedAverage
from formerlab.layers.depth.attention_residuals import AttentionResiduals, stacked_attention

LAYERS = 12

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def test_decoding_a_token_needs_few_launches():
    plain = launches(KVCache(), LAYERS)
    assert plain <= 25 * LAYERS
    assert launches(PrunedCache(Decay(), 2), LAYERS) <= 37 * LAYERS


def test_averages_over_depth_need_two_launches_per_block():
    """Adding block outputs one by one took 1273 launches in 48 blocks; this test uses 12 blocks."""
    mixing = launches(KVCache(), LAYERS, depth=DepthWeightedAverage()) - launches(KVCache(), LAYERS)
    assert mixing <= 2 * LAYERS + 2


def test_attention_over_depth_needs_few_launches_and_is_equal():
    """Adding block outputs one by one took 19 493 launches in 48 blocks; this test uses 12 blocks."""
    mixing = launches(KVCache(), LAYERS, depth=AttentionResiduals()) - launches(KVCache(), LAYERS)
    assert mixing <= 2 * 12 * LAYERS
    values = torch.randn(5, 2, 1, 8).unbind()
    keys, query = tuple(F.rms_norm(value, (8,)) for value in values), torch.randn(8)
    weights = torch.stack([(key * query).sum(-1) for key in keys]).softmax(0)
    expected = sum(weight[..., None] * value for weight, value in zip(weights, values, strict=True))
    torch.testing.assert_close(stacked_attention(values, keys, query), expected)
