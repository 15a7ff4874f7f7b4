"""How many operations a decoded token takes off the CPU: a GPU starts each of them, which bounds decoding."""

from estimates import launches

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import DepthWeightedAverage

LAYERS, LONG = 12, 48


def test_a_token_takes_few_launches():
    plain = launches(KVCache(), LAYERS)
    assert plain <= 25 * LAYERS
    assert launches(PrunedCache(Decay(), 2), LAYERS) <= 38 * LAYERS


def test_an_average_over_depth_takes_two_launches_at_any_depth():
    """Streams added one after another took 1273 in 48 blocks."""
    mixing = launches(KVCache(), LONG, depth=DepthWeightedAverage()) - launches(KVCache(), LONG)
    assert mixing <= 2 * LONG + 2
