"""How many operations a decoded token takes off the CPU: a GPU starts each of them, which bounds decoding."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.layers import DepthWeightedAverage
from formerlab.models import Decoder

TOKENS, LAYERS, LONG = 4, 12, 48
NONE = {torch.ops.aten._unsafe_view, torch.ops.aten.squeeze_, torch.ops.aten.promote_types}
"""Operations that are no views by name, but write no numbers."""


class Launches(TorchDispatchMode):
    """Counts operations that write numbers, which views do not."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += not (function.is_view or function.overloadpacket in NONE)
        return function(*arguments, **(options or {}))


def launches(cache, layers, **parts):
    """Return those of the last of some tokens, on a device of sizes without numbers."""
    with torch.device("meta"):
        model = Decoder(vocabulary=64, width=32, heads=2, context=64, layers=layers, **parts).build().eval()
        token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        for start in range(TOKENS):
            with Launches() as counted:
                model(token, attend=cache, start=start)
    return counted.count


def test_a_token_takes_few_launches():
    plain = launches(KVCache(), LAYERS)
    assert plain <= 25 * LAYERS
    assert launches(PrunedCache(Decay(), 2), LAYERS) <= 38 * LAYERS


def test_an_average_over_depth_takes_two_launches_at_any_depth():
    """Streams added one after another took 1273 in 48 blocks."""
    mixing = launches(KVCache(), LONG, depth=DepthWeightedAverage()) - launches(KVCache(), LONG)
    assert mixing <= 2 * LONG + 2
