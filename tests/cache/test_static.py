"""Decoding steps with constant shapes: equal tokens, one graph, few kernel launches."""

import copy
import functools

import pytest
import torch
from estimates import static_launches
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from formerlab.cache import H2O, TOVA, Decay, KeyDiff, Knorm, KVCache, Local, PrunedCache, Random, StreamingLLM
from formerlab.cache.static import StaticStep, is_static
from formerlab.evaluation.language.generate import sample_token
from formerlab.layers import DepthWeightedAverage, Learned, Pattention, Rotary
from formerlab.models import Decoder

PATTENTION = {"projection": Pattention(tokens=12), "feedforward": Pattention(tokens=40)}
MODELS = {
    "transformer": {"key_heads": 2},
    "tokenformer": PATTENTION | {"position": Learned()},
    "denseformer": {"depth": DepthWeightedAverage(), "position": Rotary(fraction=0.5, interleaved=True)},
}
POLICIES = Local(), StreamingLLM(sink=2), H2O(), Decay(recent=0.5, sink=1), TOVA(), Knorm(), KeyDiff(), Random()
CACHES = {"full": KVCache} | {policy.kind: functools.partial(PrunedCache, policy, 6) for policy in POLICIES}
CASES = [(model, "full") for model in MODELS] + [(model, "decay") for model in MODELS]
CASES += [("transformer", policy.kind) for policy in POLICIES if policy.kind != "decay"]
PROMPT, TOKENS = 9, 40

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def decoder(kind):
    """Return a model whose attention is so uneven that pruning changes its output."""
    spec = Decoder(vocabulary=64, layers=2, width=16, heads=4, context=1024, embedding_std=0.5, **MODELS[kind])
    model = spec.build(seed=1).eval().requires_grad_(False)
    for weights in model.blocks.parameters():
        weights *= 20 if "projection" not in MODELS[kind] else 2
    for number, weights in enumerate(model.mixer.parameters(), start=1):
        weights.copy_(torch.arange(1.0, len(weights) + 1) / number)  # weights that differ from the initial identity
    return model


def decode_tokens(model, cache, static, temperature=0.0, prepare=lambda step: None, count=TOKENS):
    """Return the tokens of two sequences after a prompt, and their logits."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(64, (2, PROMPT), generator=generator)
    logits = model(tokens, attend=cache, last=1)[:, -1]
    if static:
        assert is_static(cache)
        prepare(step := StaticStep(model, cache, count))
    steps = []
    for _ in range(count):
        tokens = torch.stack([sample_token(row, temperature, None, generator) for row in logits])[:, None]
        logits = step(tokens) if static else model(tokens, attend=cache, start=cache.length)[:, -1]
        steps.append((tokens, logits))
    return (torch.cat(parts) for parts in zip(*steps, strict=True))


@pytest.mark.parametrize(("kind", "cache"), CASES)
def test_tokens_match_the_ordinary_cache(kind, cache):
    model, ordinary, static = decoder(kind), CACHES[cache](), CACHES[cache]()
    expected, expected_logits = decode_tokens(model, ordinary, False, temperature=0.8)
    tokens, logits = decode_tokens(model, static, True, temperature=0.8)
    assert torch.equal(tokens, expected)
    torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)
    assert ordinary.length == static.length == PROMPT + TOKENS
    assert ordinary.bytes() == static.bytes()
    if cache != "full":
        assert torch.equal(ordinary.kept(1), static.kept(1))


def test_a_cache_that_has_reached_its_budget_is_static():
    model = decoder("transformer")
    cache = PrunedCache(Decay(), 64)  # starts with one slot per key of the budget and none for the next key
    static = []
    for token in torch.randint(64, (80, 1, 1)):
        static.append(is_static(cache))
        model(token, attend=cache, start=cache.length)
    assert static == [False] * 65 + [True] * 15
    assert not is_static(KVCache())
    assert not is_static(PrunedCache(StreamingLLM(sink=2, positions="reindexed"), 6, position=model.position))


def test_a_cache_can_be_used_after_static_steps():
    model, cache = decoder("transformer"), CACHES["decay"]()
    list(decode_tokens(model, cache, True))
    other = copy.deepcopy(cache)
    token = torch.tensor([[5], [6]])
    expected = model(token, attend=cache, start=cache.length)[:, -1]
    torch.testing.assert_close(StaticStep(model, other, 1)(token), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "cache"), [case for case in CASES if case[1] in ("full", "decay", "keydiff")])
def test_many_tokens_need_one_graph(kind, cache):
    count = 200 if kind == "transformer" and cache != "keydiff" else TOKENS
    torch.compiler.reset()
    counters.clear()
    counter = CompileCounter()

    def compiled(step):
        step.compute = torch.compile(step.compute, backend=counter, fullgraph=True, dynamic=False)

    tokens, _ = decode_tokens(decoder(kind), CACHES[cache](), True, prepare=compiled, count=count)
    expected, _ = decode_tokens(decoder(kind), CACHES[cache](), False, count=count)
    assert torch.equal(tokens, expected)
    assert counter.frame_count == 1
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not counters["recompiles"]


@pytest.mark.parametrize(("kind", "cache"), [("transformer", "full"), ("denseformer", "decay")])
def test_a_compiled_step_launches_few_kernels_per_layer(kind, cache):
    """A copy of a buffer of keys or values would launch another kernel."""
    one, two = (static_launches(CACHES[cache](), layers=layers, **MODELS[kind]) for layers in (1, 2))
    assert two - one <= 17
