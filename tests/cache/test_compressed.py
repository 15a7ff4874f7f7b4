"""One-shot compression after a prompt, and one-shot policies."""

import math

import pytest
import torch
from pydantic import ValidationError
from test_policies import VARIANTS
from torch.nn import functional as F

from formerlab.cache import (
    H2O,
    TOVA,
    Chunks,
    CompressedCache,
    Decay,
    ExpectedAttention,
    Full,
    HeadAdaptive,
    Ideal,
    KeyDiff,
    Knorm,
    Local,
    PrunedCache,
    Pyramid,
    SigmoidWindow,
    Simulation,
    SnapKV,
    SpAtten,
    StreamingLLM,
    resolve_budget,
    simulate,
)
from formerlab.cache.eviction import coefficients
from formerlab.cache.one_shot import importance_of
from formerlab.cache.policies.expected import rotations, unrotated
from formerlab.cache.policies.policy import OneShot, Prompt
from formerlab.errors import UserError
from formerlab.layers import Rotary
from formerlab.layers.position import PositionEncoding


def linear(policy):
    """Return whether a policy's score is linear, so that it can be summed over a whole prompt."""
    return policy.is_online and coefficients(policy) is not None


ONE_SHOT_CASES = [
    Chunks(policy=SnapKV(window=4), size=3),
    SnapKV(window=4, kernel=3),
    ExpectedAttention(sink=2),
    SnapKV(sink=2, recent=0.25),
]
COMPRESSING = [*[policy for policy in VARIANTS if isinstance(policy, OneShot) or linear(policy)], *ONE_SHOT_CASES]


def tensors(heads=4, key_heads=2, time=30, d_head=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, heads, time, d_head), (2, key_heads, time, d_head), (2, key_heads, time, d_head)
    return [2 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def retained_keys(policy, budget, q, k, v, position=None):
    cache = CompressedCache(policy, budget, position or PositionEncoding())
    cache(0, q, k, v)
    return cache.kept(0).tolist()


def attention(q, k):
    """Return the attention of the full cache, one query head at a time."""
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return (q @ keys.transpose(-1, -2) / math.sqrt(q.shape[3])).masked_fill(~mask, -torch.inf).softmax(-1)


@pytest.mark.parametrize("policy", COMPRESSING, ids=repr)
def test_later_tokens_see_retained_keys_and_each_other(policy):
    q, k, v = tensors()
    cache = CompressedCache(policy, 0.4, PositionEncoding())
    chunks = zip(*(x.split([20, 1, 7, 2], 2) for x in (q, k, v)), strict=True)
    out = torch.cat([cache(0, *chunk) for chunk in chunks], 2)
    full = attention(q, k) @ v.repeat_interleave(2, 1)
    assert torch.allclose(out[:, :, :20], full[:, :, :20], atol=1e-12)
    retained = cache.kept(0)
    count = 20 if isinstance(policy, Full) else resolve_budget(0.4, 20)
    assert retained.shape == (2, 2, count)
    mask = torch.zeros(2, 4, 30, 30, dtype=torch.bool)
    mask[:, :, 20:, 20:] = torch.ones(10, 10).tril().bool()
    for row in range(2):
        for head in range(4):
            mask[row, head, 20:, retained[row, head // 2]] = True
    logits = q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 2
    expected = logits.masked_fill(~mask, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    assert torch.allclose(out[:, :, 20:], expected[:, :, 20:], atol=1e-12)
    assert cache.length == 30
    assert cache.bytes() == 2 * 2 * 2 * (count + 10) * 4 * 8


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, [2, 3]), (0.2, [2, 3]), (1.0, [0, 1])])
def test_scores_match_the_worked_example(alpha, expected, vectors, hand_logits):
    q = hand_logits.clamp(min=-9) * math.sqrt(5)
    k = torch.eye(5, dtype=torch.float64)[None, None]
    importance = importance_of(Decay(alpha=alpha), Prompt(q, k, k, [2], [5]), None)[0, 0]
    assert importance.tolist() == pytest.approx(vectors["hand"][f"oneshot_prefill_alpha{alpha:g}"], abs=1e-6)
    assert retained_keys(Decay(alpha=alpha), 2, q, k, k) == [[expected]]


@pytest.mark.parametrize(("slope", "width"), [(0.0, 1), (0.01, 128), (0.1, 16), (10.0, 32), (10.0, 0), (0.1, 400)])
def test_the_sigmoid_window_matches_its_formula(slope, width):
    """The weight of a query is a sigmoid of its position. A prompt of 150 tokens is read in two chunks."""
    q, k, v = tensors(time=150)
    weights = [1 / (1 + math.exp(min(700, -slope * (query - (150 - width - 0.5))))) for query in range(150)]
    columns = (attention(q, k) * torch.tensor(weights)[:, None]).sum(2)
    expected = columns.unflatten(1, (2, 2)).sum(2)
    policy = SigmoidWindow(slope=slope, width=width)
    importance = importance_of(policy, Prompt(q, k, v, [9, 9], [150, 150]), None)
    torch.testing.assert_close(importance, expected, rtol=1e-5, atol=1e-7)
    assert retained_keys(policy, 9, q, k, v) == expected.topk(9).indices.sort().values.tolist()
    if slope == 0:
        assert retained_keys(policy, 9, q, k, v) == retained_keys(H2O(recent=0.0), 9, q, k, v)


def test_decay_equals_the_exponential_weights_of_the_published_sigmoid_window():
    q, k, v = tensors(time=40)
    weights = torch.exp(0.3 * (torch.arange(40, dtype=torch.float64) - (40 - 16 - 1)))
    expected = (attention(q, k) * weights[:, None]).sum(2).unflatten(1, (2, 2)).sum(2)
    decay = Decay(alpha=math.exp(-0.3))
    importance = importance_of(decay, Prompt(q, k, v, [9, 9], [40, 40]), None)
    torch.testing.assert_close(importance * weights[-1], expected)
    assert retained_keys(decay, 9, q, k, v) != retained_keys(SigmoidWindow(slope=0.3, width=16), 9, q, k, v)


def test_step_by_step_policies_compress_a_prompt_to_their_best_keys():
    q, k, v = tensors(time=300)
    sums = attention(q, k).sum(2).unflatten(1, (2, 2)).sum(2)
    sums[..., 270:] = torch.inf  # the recent half of the budget
    assert retained_keys(H2O(), 60, q, k, v) == sums.topk(60).indices.sort().values.tolist()
    last = attention(q, k)[:, :, -1].sum(1, keepdim=True).expand(-1, 2, -1).clone()
    last[..., -1] = torch.inf
    assert retained_keys(TOVA(), 60, q, k, v) == last.topk(60).indices.sort().values.tolist()
    assert retained_keys(Knorm(), 60, q, k, v) == k.norm(dim=-1).topk(60, largest=False).indices.sort().values.tolist()
    anchor = F.normalize(k, dim=-1).mean(2, keepdim=True)
    alike = F.cosine_similarity(k, anchor, dim=-1)
    assert retained_keys(KeyDiff(), 60, q, k, v) == alike.topk(60, largest=False).indices.sort().values.tolist()
    assert retained_keys(Local(), 3, q, k, v)[0][0] == [297, 298, 299]
    assert retained_keys(StreamingLLM(sink=1), 3, q, k, v)[0][0] == [0, 298, 299]


def test_snapkv_scores_are_the_attention_of_the_window():
    q, k, v = tensors()
    window = attention(q, k)[:, :, 26:, :26].mean(2)
    padded = F.pad(window, (1, 1))
    pooled = torch.stack([padded[..., i : i + 26] for i in range(3)]).mean(0)
    best = pooled.unflatten(1, (2, 2)).mean(2).topk(6).indices.sort().values
    tail = torch.arange(26, 30).expand(2, 2, 4)
    assert retained_keys(SnapKV(window=4, kernel=3), 10, q, k, v) == torch.cat([best, tail], -1).tolist()


def test_expected_attention_matches_a_mean_over_gaussian_queries():
    q, k, v = (x / 2 for x in tensors(heads=2, key_heads=1, time=40, d_head=3))
    policy = ExpectedAttention(sink=2)
    importance = policy.importance(Prompt(q, k, v, [10, 10], [40, 40]), PositionEncoding())
    generator = torch.Generator().manual_seed(0)
    expected = torch.zeros(2, 38, dtype=torch.float64)
    for row in range(2):
        for head in range(2):
            queries = q[row, head, 2:]
            root = torch.linalg.cholesky(torch.cov(queries.T, correction=0))
            samples = queries.mean(0) + torch.randn(400_000, 3, generator=generator, dtype=torch.float64) @ root.T
            weight = (samples @ k[row, 0, 2:].T / math.sqrt(3)).exp().mean(0)
            expected[row] += weight / weight.sum() / 2
        expected[row] = expected[row] * v[row, 0, 2:].norm(dim=-1)
    assert importance[:, 0, 2:].flatten().tolist() == pytest.approx(expected.flatten().tolist(), rel=0.03)


@pytest.mark.parametrize("spec", [Rotary(), Rotary(fraction=0.5), Rotary(interleaved=True)], ids=repr)
def test_queries_are_unrotated(spec):
    position = spec.build(context=200, width=16, d_head=8)
    q = torch.randn(2, 3, 150, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(unrotated(position.rotate(q, 0), position), q, atol=1e-5)
    rotation_matrices = rotations(position, 7, 2, q)
    assert torch.allclose(q[:, :, :1] @ rotation_matrices[1], position.rotate(q[:, :, :1], 8), atol=1e-6)
    assert len(rotations(position, 150, 512, q)) == 50, "the model has no more positions"
    assert len(rotations(position, 200, 512, q)) == 1


ONE_SHOT_DEFAULTS = [policy for policy in VARIANTS if isinstance(policy, OneShot)]


@pytest.mark.parametrize(
    "policy",
    [*ONE_SHOT_DEFAULTS, Chunks(policy=H2O()), HeadAdaptive(policy=SnapKV()), Pyramid(policy=SnapKV(), layers=2)],
    ids=repr,
)
def test_one_shot_policies_refuse_single_steps(policy):
    message = rf"{type(policy).__name__}.*compresses only once, after the prompt.*CompressedCache"
    for make in (Simulation, PrunedCache):
        with pytest.raises(UserError, match=message):
            make(policy, 4)
    with pytest.raises(UserError, match=message):
        simulate(policy, torch.zeros(1, 1, 4, 4), 2)


@pytest.mark.parametrize("policy", [SpAtten(), Ideal(), H2O(variant="local_statistics")], ids=repr)
def test_policies_that_mask_whole_sequences_cannot_compress(policy):
    with pytest.raises(UserError, match=rf"{type(policy).__name__}.*cannot compress.*Simulation"):
        CompressedCache(policy, 4)


@pytest.mark.parametrize("policy", COMPRESSING, ids=repr)
def test_a_short_prompt_retains_at_least_one_key(policy):
    for time, budget in ((1, 4), (1, 0.1), (4, 0.1)):
        retained = time if isinstance(policy, Full) else 1
        assert [[len(keys) for keys in row] for row in retained_keys(policy, budget, *tensors(time=time))] == [
            [retained] * 2
        ] * 2


@pytest.mark.parametrize("policy", ONE_SHOT_CASES, ids=repr)
def test_half_precision_selects_the_keys_of_float32(policy):
    q, k, v = (x.half() for x in tensors(time=300))
    q = 200 * q  # the squares overflow in float16
    assert retained_keys(policy, 60, q, k, v) == retained_keys(policy, 60, q.float(), k.float(), v.float())


def test_missing_inputs_are_refused():
    q, k, v = tensors()
    with pytest.raises(UserError, match=r"ExpectedAttention.*pass position=model\.position"):
        CompressedCache(ExpectedAttention(), 4)(0, q, k, v)
    with pytest.raises(UserError, match="budget 0"):
        CompressedCache(Knorm(), 0)
    with pytest.raises(ValidationError, match="kernel=4: give an odd number, such as 5"):
        SnapKV(kernel=4)
