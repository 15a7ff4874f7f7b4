"""Our models as Hugging Face folders: saved, loaded by the Auto classes, generating."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from formerlab.cache import KVCache
from formerlab.errors import UserError
from formerlab.evaluation.language.generate import sample
from formerlab.integrations.huggingface.export import load_folder, save_folder
from formerlab.layers import DepthWeightedAverage, LayerNorm, Linear, Mlp, Pattention, RMSNorm
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.position import Learned, NoPosition, Rotary
from formerlab.models import Decoder
from formerlab.spec import variants

TOKENFORMER = {
    "norm": LayerNorm(gain=False, bias=False),
    "projection": Pattention(tokens=12, tau=3.0),
    "feedforward": Pattention(tokens=24),
    "position": Rotary(fraction=0.25),
}
MODERN = {"norm": RMSNorm(), "final_norm": RMSNorm(), "feedforward": Mlp(activation="swiglu"), "tied": False}
VARIANTS = {
    "plain": {"projection": Linear(bias=True), "feedforward": Mlp(bias=True), "position": Learned()},
    "no position": {"position": NoPosition(), "logit_scale": "inverse_sqrt_width"},
    "tokenformer": TOKENFORMER,
    "modern": MODERN,
    "densetokenformer": TOKENFORMER | {"depth": DepthWeightedAverage(dilation=2, period=1)},
} | {mixer.model_fields["kind"].default: {"depth": mixer()} for mixer in variants(DepthMixer)}


def build(**parts):
    """Return a model in double precision whose values are all away from their start."""
    spec = {"vocabulary": 290, "layers": 4, "width": 16, "heads": 2, "context": 48, "embedding_std": 0.5} | parts
    model = Decoder(**spec).build(seed=3).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def saved(model, tokenizer, folder):
    from transformers import AutoModelForCausalLM

    save_folder(model, tokenizer, folder, end_of_text=0)
    return AutoModelForCausalLM.from_pretrained(folder)


def tokens(*shape, seed=0):
    return torch.randint(1, 290, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("parts", VARIANTS.values(), ids=VARIANTS)
def test_a_model_comes_back_to_the_bit(parts, tmp_path):
    model = build(**parts)
    loaded = saved(model, None, tmp_path / "model")
    assert loaded.dtype == torch.float64
    assert loaded.config.decoder_spec == model.spec
    prompt = tokens(2, 20)
    with torch.no_grad():
        assert torch.equal(loaded(prompt, use_cache=False).logits, model(prompt))
    for back in (loaded.decoder, load_folder(tmp_path / "model")):
        state = back.state_dict()
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    loaded.save_pretrained(tmp_path / "again")
    again, first = (load_file(tmp_path / name / "model.safetensors") for name in ("again", "model"))
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert sum(tensor.numel() for tensor in first.values()) == model.spec.params()  # a tied head is saved once


@pytest.mark.parametrize("parts", VARIANTS.values(), ids=VARIANTS)
def test_generated_tokens_are_those_of_our_own_cache(parts, tmp_path):
    model = build(**parts)
    loaded = saved(model, None, tmp_path / "model")
    prompt = tokens(1, 9)
    own = list(sample(model, prompt[0].tolist(), tokens=6, temperature=0.0, attend=KVCache()))
    for use_cache in (True, False):
        options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        made = loaded.generate(prompt, use_cache=use_cache, **options)
        assert made[0, 9:].tolist() == own


@pytest.mark.parametrize("parts", [VARIANTS["plain"], TOKENFORMER, VARIANTS["dwa"], MODERN])
def test_rows_padded_on_the_left_generate_what_they_do_alone(parts, tmp_path):
    loaded = saved(build(**parts), None, tmp_path / "model")
    rows = [tokens(1, length, seed=length) for length in (11, 4, 7)]
    batch, mask = torch.zeros(3, 11, dtype=torch.int64), torch.zeros(3, 11, dtype=torch.int64)
    for row, prompt in enumerate(rows):
        batch[row, 11 - prompt.shape[1] :], mask[row, 11 - prompt.shape[1] :] = prompt[0], 1
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    scored = {"output_scores": True, "return_dict_in_generate": True}
    together = loaded.generate(batch, attention_mask=mask, **options, **scored)
    for row, prompt in enumerate(rows):
        alone = loaded.generate(prompt, **options, **scored)
        assert together.sequences[row, 11:].tolist() == alone.sequences[0, prompt.shape[1] :].tolist()
        for a, b in zip(together.scores, alone.scores, strict=True):
            torch.testing.assert_close(a[row], b[0], rtol=0, atol=1e-10)


def test_padding_of_either_side_changes_no_logit(tmp_path):
    loaded = saved(build(position=Learned()), None, tmp_path / "model")
    prompt = tokens(1, 6)
    gap = torch.zeros(1, 3, dtype=torch.int64)
    ones = torch.ones_like(prompt)
    with torch.no_grad():
        alone = loaded(prompt).logits
        left = loaded(torch.cat((gap, prompt), 1), attention_mask=torch.cat((gap, ones), 1)).logits[:, 3:]
        right = loaded(torch.cat((prompt, gap), 1), attention_mask=torch.cat((ones, gap), 1)).logits[:, :6]
    torch.testing.assert_close(left, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(right, alone, rtol=0, atol=1e-12)
    with pytest.raises(UserError, match="padding between tokens"):
        loaded(prompt, attention_mask=torch.tensor([[0, 1, 1, 0, 1, 1]]))


def test_beams_and_samples_do_not_depend_on_the_cache(tmp_path):
    loaded = saved(build(**TOKENFORMER), None, tmp_path / "model")
    prompt = tokens(2, 5)
    for options in ({"num_beams": 3, "do_sample": False}, {"do_sample": True, "top_k": 20, "temperature": 0.7}):
        made = []
        for use_cache in (True, False):
            torch.manual_seed(5)
            made.append(loaded.generate(prompt, max_new_tokens=8, use_cache=use_cache, **options))
        assert torch.equal(*made)


def test_a_chunked_prompt_gives_the_same_logits(tmp_path):
    loaded = saved(build(), None, tmp_path / "model")
    prompt = tokens(2, 12)
    with torch.no_grad():
        whole = loaded(prompt).logits
        first = loaded(prompt[:, :5])
        second = loaded(prompt[:, 5:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat((first.logits, second.logits), 1), whole, rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_over_the_predicted_tokens(tmp_path):
    loaded = saved(build(), None, tmp_path / "model")
    prompt = tokens(2, 12)
    out = loaded(prompt, labels=prompt)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), prompt[:, 1:].flatten())
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_the_tokenizer_comes_along(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    model = saved(build(), tokenizer, tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "the cat sat on an old house"
    assert loaded(text)["input_ids"] == tokenizer.encode(text, add_special_tokens=False).ids
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (0, 0, 48)
    batch = loaded(["the cat", "the dog ran to a mat"], padding=True, return_tensors="pt")
    assert (batch["attention_mask"][:, -1] == 1).all()
    made = model.generate(**batch, max_new_tokens=4, do_sample=False)
    assert loaded.batch_decode(made, skip_special_tokens=True)[1].startswith("the dog ran to a mat")


def test_a_fresh_model_has_drawn_its_values(tmp_path):
    from transformers import AutoModelForCausalLM

    config = saved(build(**TOKENFORMER), None, tmp_path / "model").config
    torch.manual_seed(1)
    fresh = AutoModelForCausalLM.from_config(config)
    assert fresh.decoder.embedding.std().item() == pytest.approx(0.5, rel=0.1)
    assert fresh.decoder.blocks[0].attention.query.values.std() > 0


def test_mistakes_are_one_line(tmp_path):
    model = build()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(UserError, match=r"other: exists and is no Hugging Face folder"):
        save_folder(model, None, tmp_path / "other")
    save_folder(model, None, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config["spec"]["width"] = 32
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"blocks.0.attention.key.weight does not belong to the spec"):
        load_folder(tmp_path / "model")
    config["spec"]["heads"] = 5
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"broken/config.json: spec: .*heads=5 does not divide width=32"):
        load_folder(tmp_path / "broken")
    (tmp_path / "model/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors: no such file"):
        load_folder(tmp_path / "model")
    (tmp_path / "model/config.json").write_text('{"model_type": "opt"}')
    with pytest.raises(UserError, match=r"model_type 'opt' is not ours"):
        load_folder(tmp_path / "model")


def test_the_auto_classes_know_our_models_although_they_were_imported_first(tmp_path):
    save_folder(build(), None, tmp_path / "model")
    use = f"""
from transformers import AutoConfig, AutoModelForCausalLM
import formerlab.integrations.huggingface
AutoConfig.from_pretrained({str(tmp_path / "model")!r}).decoder_spec
print(type(AutoModelForCausalLM.from_pretrained({str(tmp_path / "model")!r})).__name__)"""
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True)
    assert done.stdout == "FormerlabForCausalLM\n", done.stderr


def test_code_in_a_model_folder_never_runs(tmp_path, monkeypatch):
    """Not even where whoever is asked would say yes."""
    from formerlab.integrations.huggingface.load import load_causal_lm

    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder, ran = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with pytest.raises(UserError) as caught:
        load_causal_lm({"pretrained_model_name_or_path": str(folder)})
    assert str(folder) in str(caught.value)
    assert not ran.exists()
