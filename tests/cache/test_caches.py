"""Caches match whole-sequence attention token by token."""

import contextlib
import copy
import functools
import itertools
import math

import pytest
import torch
from test_policies import VARIANTS

from formerlab.cache import (
    H2O,
    TOVA,
    Chunks,
    CompressedCache,
    Decay,
    Full,
    HeadAdaptive,
    Knorm,
    KVCache,
    Local,
    PrunedCache,
    Pyramid,
    Random,
    Simulation,
    SnapKV,
    SpAtten,
    StreamingLLM,
    evicting,
    resolve_budget,
)
from formerlab.errors import UserError
from formerlab.layers import DepthWeightedAverage, Learned, Rotary
from formerlab.layers.attention import causal_attention
from formerlab.models import Decoder

CHUNKS = (7, 1, 1, 4, 1, 1, 1, 2)
TIME = sum(CHUNKS)
STREAMING = [
    *[policy for policy in VARIANTS if policy.is_online],
    Decay(alpha=0.5, recent=0.5),
    Decay(scope="layer"),
    Decay(alpha=0.0),
    Decay(alpha=1.0, recent=0.3, sink=1),
    H2O(recent=0.0),
    Random(sink=2, recent=0.25),
    Knorm(sink=1, recent=0.25),
    TOVA(sink=1),
]


class Toy:
    """Two layers of attention with shared key-value heads over learned or rotary positions, float64."""

    def __init__(self, key_heads: int, rotary: bool) -> None:
        generator = torch.Generator().manual_seed(5)

        def draw(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.key_heads, self.rotary = key_heads, rotary
        self.embedding, self.positions = draw(11, 16), draw(64, 16)
        self.query = [draw(16, 16) / 2 for _ in range(2)]
        self.key = [draw(16, 4 * key_heads) / 2 for _ in range(2)]
        self.value = [draw(16, 4 * key_heads) / 4 for _ in range(2)]

    def __call__(self, tokens, *, attend, start=0):
        x = self.embedding[tokens]
        if not self.rotary:
            x = x + self.positions[start : start + tokens.shape[1]]
        for layer in range(2):
            q, k, v = (
                (x @ weight[layer]).unflatten(2, (-1, 4)).transpose(1, 2)
                for weight in (self.query, self.key, self.value)
            )
            if self.rotary:
                q, k = rotate(q, start), rotate(k, start)
            x = x + attend(layer, q, k, v).transpose(1, 2).flatten(2)
        return x


def rotate(x, start):
    angle = torch.arange(start, start + x.shape[2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


def decoder(**fields):
    spec = Decoder(vocabulary=11, layers=2, width=16, heads=4, context=64, embedding_std=1.0, **fields)
    model = spec.build(seed=3).double().requires_grad_(False)
    for number, weights in enumerate(model.mixer.parameters(), start=1):
        weights.copy_(torch.arange(1.0, len(weights) + 1) / number)  # weights that differ from the initial identity
    return model


MODELS = {
    "toy, shared key-value heads": lambda: Toy(2, rotary=False),
    "toy, one key-value head, rotary": lambda: Toy(1, rotary=True),
    "decoder, learned": lambda: decoder(position=Learned()),
    "denseformer": lambda: decoder(depth=DepthWeightedAverage()),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture
def tokens():
    return torch.randint(11, (2, TIME), generator=torch.Generator().manual_seed(1))


def feed(model, tokens, cache):
    """Feed the tokens in chunks of one or several tokens; return the concatenated outputs."""
    return torch.cat([model(chunk, attend=cache, start=cache.length) for chunk in tokens.split(CHUNKS, 1)], 1)


def test_the_full_cache_matches_one_pass(model, tokens):
    attend = causal_attention if isinstance(model, torch.nn.Module) else Simulation(Full(), 1.0)
    cache = KVCache(capacity=3)
    assert torch.allclose(feed(model, tokens, cache), model(tokens, attend=attend), atol=1e-12)
    assert cache.length == TIME


SHARED = next(iter(MODELS))
EVERY_POLICY = [(policy, SHARED) for policy in STREAMING]
EVERY_POLICY += [(p, name) for p in (H2O(), Decay(scope="layer"), TOVA(), Knorm()) for name in MODELS if name != SHARED]


@pytest.mark.parametrize(("policy", "name"), EVERY_POLICY, ids=repr)
def test_eviction_matches_simulation(policy, name, tokens):
    model = MODELS[name]()
    for budget in (max(1, policy.sink), 5):
        cache = PrunedCache(policy, budget)
        actual = feed(model, tokens, cache)
        expected = model(tokens, attend=Simulation(policy, budget))
        assert (actual - expected).abs().max() < 1e-10
        assert cache.length == TIME
        if not isinstance(policy, Full):
            unpruned_logits = model(tokens, attend=Simulation(Full(), 1.0))
            # the budget must be smaller than the text, otherwise the test is vacuous
            assert (actual - unpruned_logits).abs().max() > 1e-6


@pytest.mark.parametrize("policy", STREAMING, ids=repr)
def test_eviction_retains_the_simulated_keys_at_every_step(policy, tokens):
    model, cache, masks = Toy(2, rotary=True), PrunedCache(policy, 5), {}
    model(tokens, attend=Simulation(policy, 5, observe=lambda layer, observed: masks.update({layer: observed.visible})))
    for position in range(TIME - 1):
        model(tokens[:, position : position + 1], attend=cache, start=position)
        for layer, row, key_head in itertools.product(range(2), repeat=3):
            visible = masks[layer][row, 2 * key_head, position + 1].nonzero().flatten().tolist()
            assert cache.kept(layer)[row, key_head].tolist() == visible[:-1]


def test_a_cache_grows_only_up_to_its_budget():
    q = torch.randn(1, 2, 300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for budget in (5, 100, 299, 400):
        cache = PrunedCache(Decay(), budget)
        out = torch.cat([cache(0, chunk, chunk, chunk) for chunk in q.split([1, 150, 149], 2)], 2)
        assert torch.allclose(out, Simulation(Decay(), budget)(0, q, q, q), atol=1e-12)
        slots = -(-min(budget + 1, 512) // 16) * 16  # rounded up to full SIMD vectors
        assert cache._layers[0].slots <= slots


def test_memory_is_proportional_to_the_budget():
    length, budget = 128, 51
    full, pruned = KVCache(), PrunedCache(Decay(), budget)
    x = torch.randn(1, 2, length, 8, generator=torch.Generator().manual_seed(0))
    assert full.bytes() == pruned.bytes() == 0
    for cache in (full, pruned):
        cache(0, x, x, x)
        cache(1, x, x, x)
    per_token = 2 * 2 * 2 * 8 * 4
    assert full.bytes() == per_token * length
    assert pruned.bytes() == per_token * budget
    slots = -(-(budget + 1) // 16) * 16  # rounded up to full SIMD vectors
    assert pruned.metadata_bytes() == 2 * 2 * slots * (4 + 4)
    assert pruned.bytes() / full.bytes() == pytest.approx(0.4, abs=0.01)


REORDERED = {repr(policy): functools.partial(PrunedCache, policy, 5) for policy in (Decay(recent=0.5), TOVA(), Knorm())}
REORDERED |= {"full cache": KVCache, "compressed": lambda: CompressedCache(SnapKV(), 5)}


@pytest.mark.parametrize("compile_threshold", [0, math.inf], ids=["compiled", "torch"])
@pytest.mark.parametrize("make", REORDERED.values(), ids=REORDERED)
def test_reordered_sequences_continue_correctly(make, compile_threshold, monkeypatch):
    """Beam search reorders sequences like this.

    A compiled step must not keep references to buffers from before the reordering.
    """
    monkeypatch.setattr(evicting, "COMPILE_THRESHOLD", compile_threshold)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, heads, 14, 16, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    rows, reordered, reference = torch.tensor([2, 0, 2]), make(), make()
    for start, end in ((0, 8), (8, 9), (9, 10)):
        reordered(0, *(x[:, :, start:end] for x in (q, k, v)))
        reference(0, *(x[rows, :, start:end] for x in (q, k, v)))
    reordered.reorder(rows)
    copied = copy.deepcopy(reference)  # has separate buffers and a separate compiled step
    for position in range(10, 14):
        token = [x[rows, :, position : position + 1] for x in (q, k, v)]
        expected = reference(0, *token)
        assert torch.equal(reordered(0, *token), expected)
        assert torch.equal(copied(0, *token), expected)
    if not isinstance(reordered, KVCache):
        assert torch.equal(reordered.kept(0), reference.kept(0))
        assert torch.equal(copied.kept(0), reference.kept(0))


def test_a_changed_batch_size_is_refused():
    cache, x = PrunedCache(Decay(), 4), torch.randn(3, 2, 5, 16)
    cache(0, x, x, x)
    with pytest.raises(ValueError, match="reorder needs 3 indices, one per sequence, but got 1"):
        cache.reorder(torch.tensor([1]))


@pytest.mark.parametrize(
    "policy", [SpAtten(), H2O(variant="local_statistics"), H2O(variant="global_statistics")], ids=repr
)
def test_policies_that_cannot_evict_are_refused(policy):
    with pytest.raises(UserError, match=rf"{type(policy).__name__}.*cannot evict.*Simulation"):
        PrunedCache(policy, 4)


@pytest.mark.parametrize("policy", [Decay(), H2O(), StreamingLLM(positions="reindexed")], ids=repr)
@pytest.mark.parametrize("fraction", [0.05, 0.4, 1.0])
def test_a_budget_may_be_a_fraction_of_the_prompt(policy, fraction, tokens):
    model = decoder(position=Rotary())
    cache = PrunedCache(policy, fraction, model.position)
    simulation = Simulation(policy, fraction, position=model.position)
    assert (model(tokens, attend=cache) - model(tokens, attend=simulation)).abs().max() < 1e-10
    keys = resolve_budget(fraction, TIME)
    # with a fractional budget, `sink` is capped at the number of retained keys
    policy = policy.model_copy(update={"sink": min(policy.sink, keys)})
    counting_cache = PrunedCache(policy, keys, model.position)
    model(tokens, attend=counting_cache)
    assert torch.equal(*(model(tokens[:, :2], attend=attend, start=TIME) for attend in (cache, counting_cache)))
    assert cache.bytes() == counting_cache.bytes()


def test_a_fractional_budget_with_a_known_length_supports_single_tokens(tokens):
    model = decoder()
    cache = PrunedCache(Decay(), 0.4, length=TIME)
    steps = [model(token, attend=cache, start=position) for position, token in enumerate(tokens.split(1, 1))]
    assert (torch.cat(steps, 1) - model(tokens, attend=Simulation(Decay(), 0.4))).abs().max() < 1e-10


def test_a_simulation_is_for_one_forward_pass(tokens):
    simulation = Simulation(Decay(), 0.4)
    model = Toy(4, rotary=False)
    model(tokens, attend=simulation)
    with pytest.raises(ValueError, match="new Simulation for every forward pass"):
        model(tokens, attend=simulation)


ALL_POLICIES = [
    *VARIANTS,
    Pyramid(policy=H2O(), layers=2),
    HeadAdaptive(policy=H2O()),
    Chunks(policy=H2O()),
    H2O(variant="local_statistics"),
    H2O(variant="global_statistics"),
    StreamingLLM(positions="reindexed"),
]


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=repr)
def test_a_budget_of_1_0_never_prunes(policy, tokens):
    model = decoder(position=Rotary())
    tested = []
    for make in (Simulation, PrunedCache, CompressedCache):
        with contextlib.suppress(UserError):  # the policy does not support this class
            attend = make(policy, 1.0, position=model.position)
            out = model(tokens, attend=attend) if make is Simulation else feed(model, tokens, attend)
            torch.testing.assert_close(out, model(tokens), rtol=0, atol=1e-10)
            tested.append(make)
    assert tested


@pytest.mark.parametrize("make", [Simulation, PrunedCache, CompressedCache])
@pytest.mark.parametrize(("policy", "name"), [("decay", "Decay"), (H2O, "H2O")])
def test_policy_names_and_classes_are_refused(make, policy, name, unchecked_shapes):
    message = rf"^policy=.*: give an instance of a policy of formerlab.cache, such as {name}\(\)$"
    with pytest.raises(UserError, match=message):
        make(policy, 0.4)


@pytest.mark.parametrize("policy", [Local(), Decay(), H2O(), StreamingLLM()], ids=repr)
def test_the_measured_cache_size_is_the_retained_fraction(policy, tokens):
    model = Toy(2, rotary=False)
    simulation = Simulation(policy, 0.4, [TIME, 11])
    model(tokens, attend=simulation)
    assert simulation.realised_budget.tolist() == pytest.approx([resolve_budget(0.4, TIME) / TIME, 4 / 11])
    # with a budget of TIME - 1 keys, the last query sees every key, and one key is evicted after it
    for budget in (1.0, TIME, TIME - 1):
        simulation = Simulation(policy, budget)
        model(tokens, attend=simulation)
        assert simulation.realised_budget.tolist() == pytest.approx(
            [min(resolve_budget(budget, TIME), TIME) / TIME] * 2
        )
        observed = Simulation(policy, budget, observe=lambda layer, observed: None)
        model(tokens, attend=observed)
        assert observed.realised_budget.tolist() == pytest.approx(simulation.realised_budget.tolist())


@pytest.mark.parametrize("scored_by", ["torch", "compiled"])
@pytest.mark.parametrize("make", [KVCache, lambda: PrunedCache(H2O(), 9), lambda: CompressedCache(H2O(), 9)])
def test_a_cache_started_in_inference_mode_continues_outside(make, scored_by, monkeypatch):
    monkeypatch.setattr(evicting, "COMPILE_THRESHOLD", 0 if scored_by == "compiled" else 10**9)
    q, k, v = torch.randn(3, 1, 2, 30, 8)
    outs = []
    for begin in (torch.inference_mode, torch.no_grad):
        cache = make()
        with begin():
            cache(0, q[:, :, :20], k[:, :, :20], v[:, :, :20])
            cache(0, *(x[:, :, 20:21] for x in (q, k, v)))
        steps = [cache(0, *token) for token in zip(*(x[:, :, 21:].split(1, 2) for x in (q, k, v)), strict=True)]
        cache.reorder(torch.tensor([0]))
        outs.append(torch.cat(steps, 2))
    assert torch.equal(*outs)
    assert not outs[0].requires_grad
