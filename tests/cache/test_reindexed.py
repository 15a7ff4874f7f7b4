"""Re-indexed keys match the paper's method: keys are cached before rotation and rotated by their index in the cache."""

import pytest
import torch
from test_caches import rotate

from formerlab.cache import CompressedCache, PrunedCache, Simulation, StreamingLLM
from formerlab.errors import UserError
from formerlab.layers import Learned, NoPosition, Rotary
from formerlab.layers.position import PositionEncoding
from formerlab.models import Decoder

POLICY = StreamingLLM(sink=2, positions="reindexed")
ORIGINAL_POSITIONS = StreamingLLM(sink=2)
TIME, BUDGET = 25, 6


class DoublePrecisionRotary(PositionEncoding):
    """Rotary positions in double precision."""

    def rotate(self, x, start):
        return rotate(x, start)


def plain(key_heads=2):
    """Return queries, keys, values without positions."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, TIME, 4), (2, key_heads, TIME, 4), (2, key_heads, TIME, 4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def by_index(q, k, v, budget, sink):
    """Attend token by token with positions that are indices in the cache (arXiv:2309.17453, section 3.2)."""
    rows, groups = [], q.shape[1] // k.shape[1]
    for query in range(q.shape[2]):
        recent = range(max(sink, query - (budget - sink)), query + 1)
        retained = sorted({*range(min(sink, query + 1)), *recent})
        keys = rotate(k[:, :, retained], 0).repeat_interleave(groups, 1)
        rotated_query = rotate(q[:, :, query : query + 1], len(retained) - 1)
        attention = (rotated_query @ keys.transpose(-1, -2) / 2).softmax(-1)
        rows.append(attention @ v[:, :, retained].repeat_interleave(groups, 1))
    return torch.cat(rows, 2)


def rotated(q, k):
    return rotate(q, 0), rotate(k, 0)


def test_simulation_matches_the_paper():
    q, k, v = plain()
    out = Simulation(POLICY, BUDGET, position=DoublePrecisionRotary())(0, *rotated(q, k), v)
    assert torch.allclose(out, by_index(q, k, v, BUDGET, sink=2), atol=1e-12)
    # re-indexing must change the output, otherwise the test is vacuous
    assert (out - Simulation(ORIGINAL_POSITIONS, BUDGET)(0, *rotated(q, k), v)).abs().max() > 1e-3


def test_each_sequence_of_a_padded_batch_is_reindexed():
    q, k, v = plain()
    lengths = [TIME, 13]
    together = Simulation(POLICY, 0.3, lengths, position=DoublePrecisionRotary())(0, *rotated(q, k), v)
    for row, length in enumerate(lengths):
        sequence = [x[row : row + 1, :, :length] for x in (*rotated(q, k), v)]
        alone = Simulation(POLICY, 0.3, position=DoublePrecisionRotary())(0, *sequence)
        assert torch.allclose(together[row, :, :length], alone[0], atol=1e-12)


@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_text_may_be_shorter_than_the_sink(time):
    policy, (q, k, v) = StreamingLLM(sink=4, positions="reindexed"), (x[:, :, :time] for x in plain())
    full, tensors = by_index(q, k, v, budget=9, sink=4), (*rotated(q, k), v)
    for attend in (
        Simulation(policy, 9, position=DoublePrecisionRotary()),
        PrunedCache(policy, 9, position=DoublePrecisionRotary()),
    ):
        assert torch.allclose(attend(0, *tensors), full, atol=1e-12)


@pytest.mark.parametrize("prompt", [1, 2, 7, 20])
def test_eviction_matches_the_paper(prompt):
    q, k, v = plain()
    cache, tensors = PrunedCache(POLICY, BUDGET, position=DoublePrecisionRotary()), (*rotated(q, k), v)
    sizes = [prompt, *[1] * (TIME - prompt)]
    out = torch.cat([cache(0, *chunk) for chunk in zip(*(x.split(sizes, 2) for x in tensors), strict=True)], 2)
    assert torch.allclose(out, by_index(q, k, v, BUDGET, sink=2), atol=1e-12)
    assert cache.kept(0)[0, 0].tolist() == [0, 1, 21, 22, 23, 24]


@pytest.mark.parametrize("position", [Rotary(), Rotary(fraction=0.5, interleaved=True), NoPosition()], ids=repr)
def test_decoding_matches_the_simulated_logits(position):
    spec = Decoder(vocabulary=11, layers=2, width=16, heads=2, context=64, position=position, embedding_std=1.0)
    model = spec.build(seed=3).double().requires_grad_(False)
    tokens = torch.randint(11, (2, TIME), generator=torch.Generator().manual_seed(1))
    cache = PrunedCache(POLICY, BUDGET, position=model.position)
    out = torch.cat([model(chunk, attend=cache, start=cache.length) for chunk in tokens.split([5, *[1] * 20], 1)], 1)
    expected = model(tokens, attend=Simulation(POLICY, BUDGET, position=model.position))
    assert (out - expected).abs().max() < 1e-10
    with_text_positions = model(tokens, attend=Simulation(ORIGINAL_POSITIONS, BUDGET))
    assert torch.allclose(out, with_text_positions) == isinstance(position, NoPosition)


def test_unsupported_position_encodings_are_refused():
    learned = Learned().build(64, 16, 8)
    for make in (Simulation, PrunedCache):
        with pytest.raises(UserError, match=r"pass position=model\.position"):
            make(POLICY, BUDGET)
        with pytest.raises(UserError, match="use positions='kept'"):
            make(POLICY, BUDGET, position=learned)
    with pytest.raises(UserError, match="use positions='kept'"):
        CompressedCache(POLICY, BUDGET, position=DoublePrecisionRotary())
