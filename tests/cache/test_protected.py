"""Protected tokens (sinks, recent tokens, the prompt) against a reference in plain Python."""

import pytest
import torch
from pydantic import ValidationError
from test_caches import TIME, Toy, decoder, feed
from test_engines import assert_engines_agree, prompt, tensors

from formerlab.cache import (
    H2O,
    TOVA,
    CachePolicy,
    CompressedCache,
    Decay,
    ExpectedAttention,
    Full,
    KeyDiff,
    Knorm,
    Local,
    PrunedCache,
    Random,
    Simulation,
    SnapKV,
    StreamingLLM,
    engines,
    simulate,
)
from formerlab.cache.eviction import Eviction
from formerlab.errors import UserError
from formerlab.layers import Rotary
from formerlab.layers.position import PositionEncoding
from formerlab.spec import variants

EVICTING = [cls for cls in variants(CachePolicy) if issubclass(cls, Eviction) and cls is not Full]
PROTECTING_PROMPT = [cls(protect="prompt") for cls in EVICTING]
PROMPT = 7


def random_reference(policy, heads, time, budget, first, last):
    """Return the keys that each query sees under `Random`.

    It evicts the unprotected key with the smallest random number.
    """
    draws = policy.initial_scores(torch.arange(time), heads, None, 0)[0].tolist()
    visible_keys = []
    for draw in draws:
        retained, rows = [], []
        for query in range(time):
            retained.append(query)
            rows.append(set(retained))
            if len(retained) > budget:
                retained.remove(
                    min((key for key in retained if first <= key <= query - last), key=lambda key: draw[key])
                )
        visible_keys.append(rows)
    return visible_keys


@pytest.mark.parametrize(
    ("sink", "recent", "last"), [(0, 0.0, 0), (4, 0.25, 3), (2, 0.5, 6), (0, 1.0, 12), (12, 0.5, 0)]
)
def test_protected_random_eviction_matches_the_reference(sink, recent, last):
    policy, logits = Random(sink=sink, recent=recent, seed=3), torch.randn(1, 2, 40, 40)
    _, visible = simulate(policy, logits, 12)
    expected = random_reference(policy, 2, 40, 12, sink, last)
    assert [[set(row.nonzero().flatten().tolist()) for row in head] for head in visible[0]] == expected


@pytest.mark.parametrize("cls", EVICTING)
def test_sink_and_recent_are_protected_in_every_policy(cls):
    policy = cls(recent=0.5) if cls is Local else cls(sink=3, recent=0.5)
    cache, (q, k, v) = PrunedCache(policy, 9), tensors(2, 4, 2, 30, 8)
    cache(0, q, k, v)
    protected = {*range(policy.sink), *range(26, 30)}
    assert all(protected <= set(row) for row in cache.kept(0).flatten(0, 1).tolist())


@pytest.mark.parametrize(
    "policy", [SnapKV(sink=3, recent=0.5), ExpectedAttention(recent=0.5), Random(sink=4)], ids=repr
)
def test_a_one_shot_cache_retains_protected_tokens(policy):
    cache, (q, k, v) = CompressedCache(policy, 10, PositionEncoding()), tensors(2, 4, 2, 30, 8)
    cache(0, q, k, v)
    protected = {*range(policy.sink), *range(30 - int(10 * policy.recent), 30)}
    assert all(protected <= set(row) and len(row) == 10 for row in cache.kept(0).flatten(0, 1).tolist())


@pytest.mark.parametrize("policy", PROTECTING_PROMPT, ids=repr)
def test_a_protected_prompt_is_retained_as_simulated(policy):
    model, tokens = Toy(2, rotary=True), torch.randint(11, (2, TIME), generator=torch.Generator().manual_seed(1))
    for budget in (PROMPT, PROMPT + 4):
        cache = PrunedCache(policy, budget)
        actual = feed(model, tokens, cache)  # the first chunk has 7 tokens
        expected = model(tokens, attend=Simulation(policy, budget, prompt=PROMPT))
        assert (actual - expected).abs().max() < 1e-10
        retained = cache.kept(1)
        assert retained.shape[-1] == budget
        assert torch.equal(retained[..., :PROMPT], torch.arange(PROMPT).expand_as(retained[..., :PROMPT]))


@pytest.mark.parametrize(
    ("policy", "budget", "protected"),
    [
        # half of the budget that remains after the prompt: (110 - 100) / 2
        (H2O(protect="prompt").with_prompt_length(100), 110, (100, 5)),
        (Decay(sink=4, recent=0.25), 16, (4, 4)),
        (Decay(sink=4, recent=1.0), 16, (4, 12)),
        (Decay(sink=4, recent=0.5), 3, (3, 0)),
        (StreamingLLM(), 2, (2, 0)),
    ],
)
def test_protected_tokens_do_not_exceed_the_budget(policy, budget, protected):
    assert policy.protected(budget) == protected


@pytest.mark.parametrize("policy", [Random(protect="prompt"), H2O(protect="prompt")], ids=repr)
def test_engines_agree_on_a_protected_prompt(policy):
    numba_engine = pytest.importorskip("formerlab.cache.numba_engine")
    policy = policy.with_prompt_length(5)
    prompt_inputs = prompt(policy, 9, [37, 24], *tensors(2, 4, 2, 37, 16))
    assert_engines_agree(numba_engine.run(policy, prompt_inputs), engines.run_in_torch(policy, prompt_inputs), [37, 24])


def test_reindexed_positions_with_a_protected_prompt():
    model, tokens = decoder(position=Rotary()), torch.arange(TIME)[None] % 11
    policy = StreamingLLM(sink=0, positions="reindexed", protect="prompt")
    cache = PrunedCache(policy, PROMPT + 3, model.position)
    expected = model(tokens, attend=Simulation(policy, PROMPT + 3, position=model.position, prompt=PROMPT))
    assert (feed(model, tokens, cache) - expected).abs().max() < 1e-10


def test_a_budget_below_the_protected_tokens_is_refused_in_one_line():
    message = "budget 3: Random retains the first 4 tokens (sink); give a count of at least 4"
    q, k, v = tensors(1, 2, 2, 9, 8)
    for call in (
        lambda: simulate(Random(sink=4), q @ k.transpose(-1, -2), 3),
        lambda: Simulation(Random(sink=4), 3),
        lambda: PrunedCache(Random(sink=4), 3),
        lambda: CompressedCache(Random(sink=4), 3),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == message
    for budget in (8, 0.5):
        message = r"^budget \d: TOVA retains a prompt of 9 tokens; give a count of at least 9$"
        with pytest.raises(UserError, match=message):
            PrunedCache(TOVA(protect="prompt"), budget)(0, q, k, v)
    with pytest.raises(UserError, match="retains a prompt of 9 tokens"):
        Simulation(KeyDiff(protect="prompt"), 8, prompt=9)(0, q, k, v)


def test_unsupported_uses_of_a_protected_prompt_are_refused_in_one_line():
    message = r"^Knorm.*length of the prompt is unknown; use Simulation\(\.\.\., prompt=length\)$"
    with pytest.raises(UserError, match=message):
        Simulation(Knorm(protect="prompt"), 8)
    with pytest.raises(UserError, match=r"^SnapKV.*compression evicts keys of the prompt"):
        CompressedCache(SnapKV(protect="prompt"), 8)
    for options in ({"sink": 1}, {"protect": "prompt"}):
        with pytest.raises(ValidationError, match="does not support sink and protect"):
            H2O(variant="local_statistics", **options)


def test_unset_sink_recent_and_protect_are_not_written_to_specs():
    assert Random().to_dict() == {"scope": "group", "kind": "random", "seed": 0}
    assert Random().fingerprint() == "de7b5d2696cd4ab5"
    assert Random(sink=4, recent=0.25).to_dict() == {"sink": 4, "recent": 0.25, **Random().to_dict()}
    assert SnapKV().to_dict() == {"kind": "snapkv", "window": 64, "kernel": 5}
    assert Local().to_dict() == {"sink": 0, "scope": "group", "kind": "local"}
