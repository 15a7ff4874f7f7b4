"""Models of transformers under cache policies."""

import pytest
import torch
from tiny_models import build, tokens
from transformers import __version__ as TRANSFORMERS

from formerlab.cache import Decay, Full, KeyDiff, KVCache, PrunedCache, Simulation, StreamingLLM
from formerlab.errors import UserError
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.layers.position import PositionEncoding

KINDS = ("opt", "llama")
POLICIES = (Decay(alpha=0.5, recent=0.5), StreamingLLM(), KeyDiff())


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def causal_lm(kind):
    return CausalLM(build(kind))


def stepped(model, text, attend):
    with torch.no_grad():
        return torch.cat([model(text[:, [t]], attend=attend, start=t) for t in range(text.shape[1])], dim=1)


def close(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def test_without_pruning_logits_equal_the_models_logits(kind, causal_lm):
    text, unwrapped = tokens(3, 20), build(kind)
    with torch.no_grad():
        expected = unwrapped(text).logits
        close(causal_lm(text), expected)
        close(causal_lm(text, attend=Simulation(Full(), 1.0)), expected)
        close(causal_lm(text, attend=PrunedCache(Decay(), 20)), expected)
    close(stepped(causal_lm, text, KVCache()), expected)


def test_no_token_sees_a_later_token(causal_lm):
    text, other = tokens(1, 12), tokens(1, 12, seed=9)
    changed = torch.cat((text[:, :7], other[:, 7:]), dim=1)
    for attend in (None, lambda: Simulation(Decay(), 4)):
        first, second = ({} if attend is None else {"attend": attend()} for _ in range(2))
        with torch.no_grad():
            logits, changed_logits = causal_lm(text, **first), causal_lm(changed, **second)
        close(logits[:, :7], changed_logits[:, :7], atol=1e-12)
        assert (logits[:, 7:] - changed_logits[:, 7:]).abs().max() > 0.1
    with torch.no_grad():  # a call of the wrapped model uses the mask that CausalLM registered
        logits, changed_logits = causal_lm.model(text).logits, causal_lm.model(changed).logits
    close(logits[:, :7], changed_logits[:, :7], atol=1e-12)


def test_a_direct_call_is_unchanged(kind, causal_lm):
    unwrapped, text = build(kind), tokens(2, 9)
    mask = torch.ones_like(text)
    mask[0, :4] = 0
    with torch.no_grad():
        close(causal_lm.model(text, attention_mask=mask).logits[1], unwrapped(text, attention_mask=mask).logits[1])
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    assert torch.equal(causal_lm.model.generate(text, **options), unwrapped.generate(text, **options))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_simulated_and_evicted_logits_are_equal(policy, kind, causal_lm):
    text = tokens(2, 24)
    with torch.no_grad():
        simulated = causal_lm(text, attend=Simulation(policy, 6))
        prompt_cache = PrunedCache(policy, 6)
        prompt = causal_lm(text[:, :17], attend=prompt_cache)
        decoded = [causal_lm(text[:, [t]], attend=prompt_cache, start=t) for t in range(17, 24)]
        full = causal_lm(text)
    cache = PrunedCache(policy, 6)
    close(stepped(causal_lm, text, cache), simulated)
    close(torch.cat((prompt, *decoded), dim=1), simulated)
    assert cache.kept(1).shape == (2, {"opt": 4, "llama": 2}[kind], 6)
    assert (simulated - full).abs().max() > 0.01


def test_rotated_keys_can_be_reindexed():
    policy, text = StreamingLLM(sink=2, positions="reindexed"), tokens(2, 24)
    for kind in ("llama", "cohere", "neox"):  # grouped heads, interleaved channels, a quarter of the channels
        model = CausalLM(build(kind))
        with torch.no_grad():
            simulated = model(text, attend=Simulation(policy, 6, position=model.position))
            original_positions = model(text, attend=Simulation(StreamingLLM(sink=2), 6))
        cache = PrunedCache(policy, 6, position=model.position)
        close(stepped(model, text, cache), simulated)
        assert (simulated - original_positions)[:, 8:].abs().max() > 0.01
        close(simulated[:, :7], original_positions[:, :7])


def test_a_model_without_positions_is_recognised():
    model = build("llama")
    model.model.rotary_emb.inv_freq.zero_()
    assert type(CausalLM(model).position) is PositionEncoding


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            "mistral",
            {"sliding_window": 16},
            "its layers have a sliding window of 16 tokens; give a context of at most 16",
        ),
        ("gemma2", {"head_dim": 8}, "cache policies do not support attention with softcap"),
        ("bloom", {}, "0 of 2 layers use transformers' attention interface"),
        ("mpt", {}, "0 of 2 layers use transformers' attention interface"),
        ("mamba", {}, "cache policies do not support its layers of type linear_attention"),
        (
            "qwen2",
            {"layer_types": ["chunked_attention", "sliding_attention"]},
            "cache policies do not support its layers of type chunked_attention$",
        ),
    ],
)
def test_unsupported_models_are_refused(kind, changes, message):
    if kind in ("mpt", "mamba") and TRANSFORMERS.startswith("4."):
        pytest.skip("transformers 4 does not run MPT in double precision and does not name the layer types of Mamba")
    model = build(kind, **changes)
    if not changes:
        # Released Bloom, MPT and Mamba models have no max_position_embeddings. The error must name the unsupported
        # layers instead of the missing context.
        del model.config.max_position_embeddings
    with pytest.raises(UserError, match=message):
        CausalLM(model)


@pytest.mark.parametrize("window", [16, 32])
def test_a_window_at_least_as_long_as_the_context_is_ignored(window):
    model, text = CausalLM(build("mistral", sliding_window=window), context=16), tokens(1, 16)
    with torch.no_grad():
        close(model(text), build("mistral", sliding_window=window)(text).logits)
    with pytest.raises(ValueError, match="17 tokens exceed the model's context of 16"):
        model(tokens(1, 17))


def test_modified_attention_is_detected(monkeypatch):
    """The attention of the model multiplies its output by 1.5."""
    from transformers.models.llama import modeling_llama

    model = build("llama")
    model.set_attn_implementation("eager")
    eager_attention = modeling_llama.eager_attention_forward

    def modified(*args, **kwargs):
        out, weights = eager_attention(*args, **kwargs)
        return out * 1.5, weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", modified)
    with pytest.raises(UserError, match=r"its attention differs from softmax\(q k\^T\) v"):
        CausalLM(model)


@pytest.mark.parametrize("kind", ["llama", "cohere"])
def test_in_half_precision_the_nearest_rotation_is_chosen(kind):
    """With one large pair of channels, interleaved and split rotations are both within the tolerance."""
    model = build(kind).bfloat16()
    with torch.no_grad():
        for layer in model.model.layers:
            rows = layer.self_attn.k_proj.weight.unflatten(0, (2, 8))
            rows[:, [6, 7] if kind == "cohere" else [3, 7]] *= 20  # the pair with the smallest angle
    assert CausalLM(model).position.interleaved == (kind == "cohere")
