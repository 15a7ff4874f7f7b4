"""formerlab.prune: models of transformers with a pruned cache."""

import re
import warnings
from threading import Thread

import pytest
import tiny_models
import torch
from accelerate import cpu_offload
from tiny_models import build, character_tokenizer, tokens
from torch.nn import DataParallel, Module
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, StaticCache, TextIteratorStreamer
from transformers import __version__ as TRANSFORMERS

from formerlab.cache import (
    H2O,
    CompressedCache,
    Decay,
    ExpectedAttention,
    Full,
    HeadAdaptive,
    Ideal,
    Local,
    PrunedCache,
    Pyramid,
    Simulation,
    SnapKV,
    StreamingLLM,
    engines,
    evicting,
)
from formerlab.errors import UserError
from formerlab.evaluation.language.generate import sample
from formerlab.evaluation.pruning.calibration import Headwise
from formerlab.integrations.huggingface import pruning
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.integrations.huggingface.modeling import CACHE_FIELD, FormerlabConfig, FormerlabForCausalLM
from formerlab.integrations.huggingface.pruning import prune
from formerlab.layers import Learned, Rotary
from formerlab.models import Decoder
from formerlab.torchvision_shim import ensure_torchvision_imports

KINDS = ("opt", "llama", "qwen2", "neox")
GREEDY = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
VERSION_5 = int(TRANSFORMERS.partition(".")[0]) >= 5
"""Whether transformers has `rope_parameters`."""
PADDED = [9, 20, 14]
"""True lengths of a batch of 20 columns."""


@pytest.fixture(scope="module")
def models():
    """Return models by kind. Tests rely on `prune` restoring them."""
    return {kind: build(kind) for kind in KINDS}


def generated(model, text, **options):
    return model.generate(text, **(GREEDY | options))[:, text.shape[1] :]


def sampled_tokens(wrapped, text, attend, count=10):
    return list(sample(wrapped, text[0].tolist(), tokens=count, temperature=0.0, attend=attend))


def padded(count=20):
    mask = torch.zeros(len(PADDED), count, dtype=torch.long)
    for row, length in enumerate(PADDED):
        mask[row, count - length :] = 1
    return tokens(len(PADDED), count), mask


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_match_our_cache(kind, models):
    model, wrapped, text = models[kind], CausalLM(build(kind)), tokens(1, 20)
    unpruned = generated(model, text)
    cases = [(Decay(alpha=0.2), 0.4), (H2O(), 6), (SnapKV(window=4), 0.4), (ExpectedAttention(sink=1), 6)]
    cases += [(HeadAdaptive(policy=SnapKV(window=4)), 0.4), (Pyramid(policy=H2O(), layers=2, last=0.5), 0.4)]
    if kind != "opt":
        cases.append((StreamingLLM(sink=2, positions="reindexed"), 0.4))
    for policy, budget in cases:
        make = CompressedCache if isinstance(policy.scorer, SnapKV | ExpectedAttention) else PrunedCache
        expected = sampled_tokens(wrapped, text, make(policy, budget, wrapped.position))
        with prune(model, policy, budget):
            assert generated(model, text)[0].tolist() == expected, policy
        assert expected != unpruned[0].tolist() or not VERSION_5, "pruning must change the tokens of this test"
    assert torch.equal(generated(model, text), unpruned)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_full_does_not_change_generation(kind, models):
    model, (text, mask) = models[kind], padded()
    for options in ({"attention_mask": mask}, {"num_beams": 3}, {"prefill_chunk_size": 7}):
        unpruned = generated(model, text, **options)
        for policy, budget in ((Full(), 0.4), (Decay(), 1.0), (SnapKV(), 1.0)):
            with prune(model, policy, budget):
                assert torch.equal(generated(model, text, **options), unpruned), (policy, options)


@pytest.mark.parametrize("kind", ["opt", "neox"])
def test_left_padded_rows_generate_the_same_as_single_rows(kind, models):
    model, (text, mask) = models[kind], padded()
    with prune(model, Decay(), 0.4):
        together = generated(model, text, attention_mask=mask)
        for row, length in enumerate(PADDED):
            assert torch.equal(together[row], generated(model, text[row : row + 1, -length:])[0])


def test_each_row_retains_its_own_protected_prompt(models):
    model, (text, mask), policy = models["llama"], padded(), H2O(protect="prompt")
    options = {"return_dict_in_generate": True, "max_new_tokens": 16}
    with prune(model, policy, 22):
        out = model.generate(text, attention_mask=mask, **(GREEDY | options))
        for rows, padding, cache in out.past_key_values._row_groups:
            length = text.shape[1] - padding
            assert (cache.kept(0)[..., :length] == torch.arange(length)).all()
            assert cache.kept(0).shape[-1] == min(22, length + 15)
            alone = model.generate(text[rows][:, padding:], **(GREEDY | options)).sequences
            assert torch.equal(out.sequences[rows, padding:], alone)
        unprotected = model.generate(text[1:2], **(GREEDY | options)).sequences
    with prune(model, H2O(), 22):
        assert not torch.equal(model.generate(text[1:2], **(GREEDY | options)).sequences, unprotected)
    with pytest.raises(UserError, match="budget 19: H2O retains a prompt of 20 tokens"), prune(model, policy, 19):
        generated(model, text, attention_mask=mask)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_beams_and_samples_match_generation_without_a_cache(kind, models):
    """Without a cache every step reads the whole text, so positions cannot be wrong."""
    model, (text, mask) = models[kind], padded()
    for options in ({"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "top_k": 9}):
        with prune(model, Decay(), 6):
            torch.manual_seed(0)
            with_cache = generated(model, text, attention_mask=mask, max_new_tokens=5, **options)
            torch.manual_seed(0)
            without = generated(model, text, attention_mask=mask, max_new_tokens=5, use_cache=False, **options)
        assert torch.equal(with_cache, without), options


def test_calls_match_a_simulation_and_have_no_gradient(models):
    model, text = models["llama"], tokens(2, 20)
    with torch.no_grad():
        simulated = CausalLM(build("llama"))(text, attend=Simulation(Decay(), 0.4))
    with prune(model, Decay(), 0.4):
        out = model(text, labels=text)
        torch.testing.assert_close(out.logits, simulated, rtol=0, atol=1e-10)
        assert not out.loss.requires_grad
        next_out = model(text[:, :1], past_key_values=out.past_key_values)
    assert out.past_key_values.get_seq_length() == 21
    assert next_out.past_key_values is out.past_key_values
    assert model(text, labels=text).loss.requires_grad


def test_consecutive_positions_are_accepted(models):
    """Positions may start at 9, and left padding may have position 1, as in transformers."""
    model, text = models["llama"], tokens(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    padded_positions = {"position_ids": (mask.cumsum(1) - 1).masked_fill(mask == 0, 1), "attention_mask": mask}
    with prune(model, Full(), 6):
        for positions in (padded_positions, {"position_ids": torch.arange(9, 15)[None]}):
            pruned_logits = model(text, **positions).logits
            model.forward, pruned_forward = type(model).forward.__get__(model), model.forward
            with torch.no_grad():
                torch.testing.assert_close(pruned_logits[:, -1], model(text, **positions).logits[:, -1])
            model.forward = pruned_forward


def test_a_cache_retains_its_budget(models):
    model, text = models["llama"], tokens(1, 20)
    with prune(model, Decay(), 6):
        cache = model.generate(text, return_dict_in_generate=True, **GREEDY).past_key_values
    layers, kv_heads, channels, keys_and_values, float64_bytes = 2, 2, 8, 2, 8
    assert cache.bytes() == 6 * layers * kv_heads * channels * keys_and_values * float64_bytes


def formerlab_model(position, context=48):
    spec = Decoder(vocabulary=290, layers=2, width=16, heads=2, context=context, embedding_std=0.5, position=position)
    return FormerlabForCausalLM(FormerlabConfig(spec=spec.to_dict())).double().eval()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("position", [Rotary(fraction=0.5), Learned()], ids=lambda position: position.kind)
def test_formerlab_models_in_transformers_are_pruned(position):
    model, (text, mask) = formerlab_model(position), padded()
    with prune(model, Decay(), 0.4):
        together = generated(model, text, attention_mask=mask)
    for row, length in enumerate(PADDED):
        expected = sampled_tokens(model.decoder, text[row : row + 1, -length:], PrunedCache(Decay(), 0.4))
        assert together[row].tolist() == expected


def test_the_model_is_always_restored():
    model, text = build("llama"), tokens(1, 9)
    model.set_attn_implementation("eager")
    model.train()
    model.lm_head.eval()
    modes, attributes = [module.training for module in model.modules()], dict(model.__dict__)

    def check():
        assert [module.training for module in model.modules()] == modes
        assert model.__dict__ == attributes
        assert model.config._attn_implementation == "eager"

    with prune(model, Decay(), 6):
        assert not model.training
        model(text)
    check()
    with pytest.raises(KeyError), prune(model, Decay(), 6):
        raise KeyError
    check()
    for policy in (Ideal(), Decay(alpha=0.5)):
        with pytest.raises((UserError, TypeError, AttributeError)), prune(model, policy, 6):
            model(text, position_ids="none")
        check()
    forward = model.forward
    model.forward = forward  # hooks of accelerate set this attribute
    with prune(model, Decay(), 6):
        pass
    assert model.__dict__["forward"] is forward


@pytest.mark.parametrize("name", ["past_key_values", CACHE_FIELD])
@pytest.mark.parametrize("kind", ["llama", "formerlab"])
def test_the_callers_cache_is_filled(kind, name, models):
    model, text = models[kind] if kind in models else formerlab_model(Rotary()), tokens(1, 20)
    with prune(model, Decay(), 6), torch.no_grad():
        expected, cache = model(text).logits, DynamicCache()
        pieces = [model(piece, **{name: cache}).logits for piece in text.split([5, 1, 1, 13], 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=0, atol=1e-10)
        assert cache.get_seq_length() == 20
        expected_tokens, cache = generated(model, text), DynamicCache()
        assert torch.equal(generated(model, text, **{name: cache}), expected_tokens)
        assert cache.get_seq_length() == 20 + GREEDY["max_new_tokens"] - 1


def test_a_pipeline_and_a_streamer_generate_the_pruned_tokens(models):
    ensure_torchvision_imports()
    from transformers import pipeline

    model, tokenizer = models["llama"], character_tokenizer(pad_token=" ", padding_side="left")
    inputs, options = tokenizer("once upon a time", return_tensors="pt"), GREEDY | {"use_cache": True}
    unpruned = model.generate(**inputs, **options)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    with prune(model, Decay(), 6):
        expected = tokenizer.decode(model.generate(**inputs, **options)[0, 16:])
        assert expected != tokenizer.decode(unpruned[0, 16:])
        outputs = pipe(["once upon a time", "a cat"], batch_size=2, return_full_text=False, **options)
        assert outputs[0][0]["generated_text"] == expected
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        thread = Thread(target=model.generate, kwargs={**inputs, **options, "streamer": streamer})
        thread.start()
        assert "".join(streamer) == expected
        thread.join()
    assert torch.equal(model.generate(**inputs, **options), unpruned)


@pytest.mark.parametrize("policy", [Decay(), SnapKV(window=4), HeadAdaptive(policy=SnapKV(window=4))], ids=repr)
def test_a_half_precision_model_uses_half_the_bytes(policy):
    text, options = tokens(1, 20), {"return_dict_in_generate": True}
    sizes = []
    for model in (build("llama").float(), build("llama").half()):
        with prune(model, policy, 6):
            out = model.generate(text, **(GREEDY | options))
        assert out.sequences.shape == (1, 30)
        sizes.append(out.past_key_values.bytes())
    assert sizes[0] == 2 * sizes[1]


def test_a_static_cache_is_refused_with_the_remedy(models):
    model, (text, mask) = models["llama"], padded()
    cache = StaticCache(config=model.config, max_cache_len=40)
    for options in ({"past_key_values": cache}, {"cache_implementation": "static"}):
        for padding in ({"attention_mask": mask}, {}):
            with (
                pytest.raises(UserError, match="pruning would save none; give a DynamicCache"),
                prune(model, Decay(), 6),
            ):
                generated(model, text, **options, **padding)
    assert cache.get_seq_length() == 0


LONG = tokens(1, tiny_models.CONTEXT)


@pytest.mark.parametrize(
    ("policy", "losses", "remedy"),
    [
        (Local(), (7.0, 3.4, 3.0), r"StreamingLLM\(sink=4\)"),
        (Decay(), (7.0, 3.4, 3.0), "sink=4"),
        (Decay(), (5.9, 1.0, 3.0), None),
        (Decay(), (7.0, 3.6, 3.0), None),
        (Decay(sink=1), (7.0, 3.4, 3.0), None),
        (SnapKV(), (7.0, 3.4, 3.0), None),
    ],
    ids=repr,
)
def test_an_evicted_attention_sink_is_reported_once(policy, losses, remedy, monkeypatch):
    """`losses` are in nats: with the policy, with the policy and four sink tokens, and with the full cache."""
    model, measured = build("llama"), []
    remaining = iter(losses)
    monkeypatch.setattr(
        pruning, "cross_entropy", lambda logits, tokens: measured.append(len(logits)) or next(remaining)
    )
    for text in (LONG[:, :63], LONG, LONG):
        with warnings.catch_warnings(record=True) as caught, prune(model, policy, 0.4):
            warnings.simplefilter("always")
            model(text)
        messages = [str(warning.message) for warning in caught]
        if text is LONG and remedy and len(measured) == 3:
            assert re.search(rf"is 7.00 nats, 3.00 with the full cache and 3.40 with .* use {remedy}$", messages.pop())
            remedy = None
        assert messages == []
    assert measured == ([63] * 3 if policy.kind in ("local", "decay") and not policy.sink else [])
    assert remedy is None


@pytest.mark.parametrize("position", [None, Rotary(fraction=0.5)], ids=["transformers", "formerlab"])
def test_the_sink_test_measures_the_loss_under_each_policy(position, monkeypatch):
    model, losses = build("llama") if position is None else formerlab_model(position, context=64), []
    expected = []
    for policy in (Local(), StreamingLLM(), Full()):
        with prune(model, policy, 26), torch.no_grad():
            pruning._tested_policies.setdefault(model, set()).add(policy)
            expected.append(cross_entropy(model(LONG).logits[0, :-1].float(), LONG[0, 1:]).item())
    pruning._tested_policies.clear()
    monkeypatch.setattr(
        pruning, "cross_entropy", lambda *args: losses.append(cross_entropy(*args).item()) or losses[-1]
    )
    with prune(model, Local(), 0.4):
        model(LONG)
    assert losses == pytest.approx(expected, rel=1e-6)


def test_a_call_accepts_one_transformers_cache(models):
    text, cache = tokens(1, 4), DynamicCache()
    for model in (models["llama"], formerlab_model(Rotary())):
        for wrong in ({"cache_params": cache}, {"mems": cache}, {CACHE_FIELD: ((cache, cache),)}):
            with (
                pytest.raises(UserError, match=f"^{next(iter(wrong))}: give one cache of transformers"),
                prune(model, H2O(), 6),
            ):
                model(text, **wrong)
    with pytest.raises(UserError, match=r"^cache and past_key_values: give one cache"):
        model(text, cache=cache, past_key_values=DynamicCache())
    with pytest.raises(UserError, match="give a DynamicCache"):
        model(text, **{CACHE_FIELD: StaticCache(config=model.config, max_cache_len=30)})


def test_values_may_be_narrower_than_keys(monkeypatch, unchecked_shapes):
    model, text = build("deepseek_v3").float(), tokens(1, 20)  # its experts do not support float64
    unpruned = generated(model, text)
    for policy in (Full(), H2O(), SnapKV()):
        with prune(model, policy, 500):
            assert torch.equal(generated(model, text), unpruned)
    with prune(model, Decay(alpha=0.2), 6):
        in_torch, logits = generated(model, text), model(text).logits
        monkeypatch.setattr(engines, "NUMBA_THRESHOLD", 0)
        monkeypatch.setattr(evicting, "COMPILE_THRESHOLD", 0)
        assert torch.equal(generated(model, text), in_torch)
    with torch.no_grad():
        by_head = CausalLM(model)(text, attend=Headwise([[0.2] * 4] * 2, 6, torch.tensor([20])))
    torch.testing.assert_close(by_head, logits)


def filled_cache(model, budget):
    with prune(model, Decay(), budget):
        return model(tokens(1, 9)).past_key_values


WRONG_CALLS = {
    "pruned already": lambda model: prune(model, Decay(), 6).__enter__(),
    "was filled without pruning": lambda model: model(tokens(1, 2), past_key_values=CACHES["unpruned"]),
    "was filled with Decay.* and budget 6": lambda model: model(tokens(1, 2), past_key_values=CACHES["other"]),
    "use it inside the prune block": lambda model: build("llama")(tokens(1, 1), past_key_values=CACHES["pruned"]),
    r"pad batches on the left \(padding_side='left'\)": lambda model: model(
        tokens(2, 4), attention_mask=torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    ),
    r"shape \(1, 1, 4, 4\): give a number": lambda model: model(tokens(1, 4), attention_mask=torch.ones(1, 1, 4, 4)),
    "a fraction needs a prompt of at least two tokens": lambda model: model(tokens(1, 1)),
    "[34] tokens after the first call": lambda model: generated(model, tokens(1, 8), prefill_chunk_size=4),
    "padding differs from the first call": lambda model: model(
        tokens(1, 2), attention_mask=torch.tensor([[0, *[1] * 10]]), past_key_values=CACHES["pruned"]
    ),
    "cannot be cropped, because evicted tokens are lost": lambda model: generated(
        model, tokens(1, 20), prompt_lookup_num_tokens=2
    ),
    "output_attentions: a pruned cache returns no attention": lambda model: model(tokens(1, 4), output_attentions=True),
    "position_ids: not consecutive within a row": lambda model: model(
        tokens(1, 6), position_ids=torch.arange(3).repeat(2)[None], use_cache=False
    ),
    "position_ids: not consecutive within a row; give each text": lambda model: model(
        inputs_embeds=model.get_input_embeddings()(tokens(2, 6)),
        position_ids=torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 0, 1]]),
        attention_mask=torch.tensor([[1] * 6, [0] + [1] * 5]),
    ),
    "support attention with cu_seq_lens_q": lambda model: model(tokens(1, 6), cu_seq_lens_q=torch.tensor([0, 3, 6])),
    "10 tokens exceed the context of 9": lambda model: model(tokens(1, 10)),
}
CACHES = {}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_unsupported_calls_are_refused_in_one_line(message, models):
    model, text = models["llama"], tokens(1, 9)
    pruned, other = filled_cache(model, 0.4), filled_cache(model, 6)
    CACHES.update(unpruned=model(text).past_key_values, pruned=pruned, other=other)
    context = 9 if "context" in message else None
    with pytest.raises(UserError, match=message) as error, prune(model, Decay(), 0.4, context=context):
        WRONG_CALLS[message](model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Ideal(), 6), "cannot evict"),
        ((HeadAdaptive(policy=Decay()), 6), "evicts in simulation only"),
        ((Pyramid(policy=Decay(), layers=3), 6), "the model has 2 layers; give layers=2"),
        ((Decay(), 0), "budget 0: give a count"),
        ((Decay(), 1.5), r"budget 1\.5: give a count"),
    ],
)
def test_unsupported_policies_are_refused_at_the_start_of_the_block(arguments, message, models):
    with pytest.raises(UserError, match=message), prune(models["llama"], *arguments):
        pytest.fail("the block began")


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.skipif(not VERSION_5, reason="transformers 4 does not read these configurations")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": DYNAMIC}),
        *((kind, {}) for kind in ("smollm3", "gemma3", "deepseek_v3")),
    ],
)
def test_unknown_rotations_are_refused_if_the_policy_needs_them(kind, changes, unchecked_shapes):
    model = build(kind, **changes).float()
    for policy, message in (
        (ExpectedAttention(), r"^ExpectedAttention\(.* is unknown; use SnapKV, or .* such as Decay$"),
        (StreamingLLM(positions="reindexed"), "the rotation of this model is unknown; use positions='kept'"),
    ):
        with pytest.raises(UserError, match=message), prune(model, policy, 6):
            pytest.fail("the block began")
    with prune(model, SnapKV(), 6):
        pass


def test_other_models_are_refused():
    with pytest.raises(UserError, match="not a DecoderModel; pass attend=PrunedCache"):
        prune(Decoder(layers=1, width=8, heads=2, vocabulary=9).build(), Decay(), 6).__enter__()
    with pytest.raises(UserError, match="support attention with softcap"):
        prune(build("gemma2"), Decay(), 6).__enter__()
    with prune(build("mistral", sliding_window=16), Decay(), 6, context=16):
        pass


@pytest.mark.parametrize(
    ("wrap", "remedy"),
    [
        (lambda model: type("PeftModel", (Module,), {})(), "model.get_base_model()"),
        (lambda model: torch.compile(model, backend="eager"), "before torch.compile (model._orig_mod)"),
        (DataParallel, "prune the wrapped model, model.module"),
        (lambda model: type("T5", (Module,), {})(), "not a T5"),
    ],
)  # fmt: skip
def test_wrapped_models_are_refused_with_a_remedy(wrap, remedy, models):
    with pytest.raises(UserError) as caught, prune(wrap(models["llama"]), Decay(), 6):
        pytest.fail("the block began")
    assert str(caught.value).endswith(remedy + (", which includes the adapters" if "base" in remedy else ""))


@pytest.mark.parametrize("policy", [Full(), Decay(alpha=0.2)])
def test_offloaded_models_are_pruned(policy):
    model, text = build("llama"), tokens(1, 20)
    with prune(model, policy, 6):
        expected = generated(model, text)
    cpu_offload(model, torch.device("cpu"))
    with prune(model, policy, 6):
        assert torch.equal(generated(model, text), expected)


def test_models_without_weights_or_with_overflow_are_refused():
    with torch.device("meta"):
        empty = build("llama")
    with pytest.raises(UserError, match="its weights are on the meta device"), prune(empty, Decay(), 6):
        pytest.fail("the block began")
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.fill_(torch.inf)
    with (
        pytest.raises(UserError, match=r"^LlamaForCausalLM: the model's logits are not finite"),
        prune(model, Decay(), 6),
    ):
        pytest.fail("the block began")
