"""Exported Hugging Face folders load without this package, and load back bit-identically."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from variation import defaults, perturb

from formerlab import torchvision_shim
from formerlab.errors import UserError
from formerlab.evaluation.language.generate import sample
from formerlab.integrations.huggingface.export import save_folder
from formerlab.integrations.huggingface.load import load_causal_lm
from formerlab.layers import DepthWeightedAverage, LayerNorm, Linear, Mlp, Pattention, RMSNorm
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.position import Learned, NoPosition, Rotary, Sinusoidal
from formerlab.models import Decoder

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
    "densetokenformer": TOKENFORMER | {"depth": DepthWeightedAverage(dilation=2, period=1)},
    "grouped": {"key_heads": 1, "query_key_norm": RMSNorm(), "norm": RMSNorm(gain=False)},
    "sinusoidal": {"position": Sinusoidal(), "feedforward": Pattention(tokens=24, score="gelu_l1")},
}
VARIANTS |= {mixer.kind: {"depth": mixer, "position": Learned()} for mixer in defaults(DepthMixer)}
"""Models that are exported with model code, including every depth mixer."""
HALVES = Rotary(interleaved=True, fraction=0.5)
NATIVE = {
    "GPTNeoXForCausalLM": {},
    "GPTNeoXForCausalLM, pairs": {"position": HALVES, "feedforward": Mlp(bias=True, activation="relu"), "tied": False},
    "GPTNeoXForCausalLM, bare": {"norm": LayerNorm(gain=False, bias=False), "projection": Linear(bias=True)},
    "LlamaForCausalLM": MODERN | {"key_heads": 1},
    "LlamaForCausalLM, pairs": MODERN | {"position": Rotary(interleaved=True), "logit_scale": "inverse_sqrt_width"},
}
"""Models that fit a native layout, by the class of transformers that loads it."""


def build(**fields):
    """Return a double-precision model in which all weights differ from their initial values."""
    spec = {"vocabulary": 290, "layers": 4, "width": 16, "heads": 2, "context": 48, "embedding_std": 0.5} | fields
    return perturb(Decoder(**spec).build(seed=3).double().eval())


SCRIPT = """
import importlib.util, sys

shim = importlib.util.spec_from_file_location("shim", sys.argv[1])  # for a torchvision without its operators
module = importlib.util.module_from_spec(shim)
shim.loader.exec_module(module)
module.ensure_torchvision_imports()
sys.modules |= dict.fromkeys(["formerlab", "pydantic", "jaxtyping"])  # None: no such module
import torch
from transformers import AutoModelForCausalLM

prompt, results = torch.load(sys.argv[2]), {}
for folder in sys.argv[4:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        logits = model(prompt).logits
    generated = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    results[folder] = type(model).__name__, logits, generated[:, prompt.shape[1] :]
torch.save(results, sys.argv[3])
"""


def test_exported_models_load_without_this_package_and_the_documented_calls_do_not_prompt(tokenizer, tmp_path):
    """A process that cannot import the package computes the same logits and tokens as this process.

    Without `trust_remote_code` transformers asks whether to run the folder's code, also for the tokenizer.
    """
    page = (Path(__file__).parents[2] / "docs/existing_models.md").read_text()
    (example,) = [block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if '"plain-4"' in block]
    fail_at_prompt = "\nimport builtins, os\nbuiltins.input = lambda *_: os._exit(3)\n"
    save_folder(build(**VARIANTS["plain"]).float(), tokenizer, tmp_path / "plain-4", end_of_text=0)
    prompt, expected = tokens(1, 20), {}
    torch.save(prompt, tmp_path / "prompt.pt")
    for number, (name, fields) in enumerate((VARIANTS | NATIVE).items()):
        model = build(**fields).float()
        save_folder(model, None, tmp_path / f"model_{number}")
        with torch.no_grad():
            generated = sample(model, prompt[0].tolist(), tokens=5, temperature=0.0)
            expected[str(tmp_path / f"model_{number}")] = name, model(prompt), list(generated)
    arguments = [torchvision_shim.__file__, tmp_path / "prompt.pt", tmp_path / "results.pt", *expected]
    process = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT + fail_at_prompt + example, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path)},
    )
    assert process.returncode == 0, process.stderr
    assert "the dog ran to" in process.stdout
    for folder, (kind, logits, generated) in torch.load(tmp_path / "results.pt").items():
        name, expected_logits, expected_tokens = expected[folder]
        assert kind == (name.partition(",")[0] if name in NATIVE else "FormerlabForCausalLM")
        torch.testing.assert_close(logits, expected_logits, rtol=0, atol=1e-5, msg=name)
        assert generated[0].tolist() == expected_tokens, name


def test_a_folder_has_the_keys_of_transformers_4_and_5(tokenizer, tmp_path):
    """Version 4.57 ignores `rope_parameters` and finds the tokenizer class by name."""
    for name, old_keys in {
        "GPTNeoXForCausalLM, pairs": {"rotary_pct": 0.5, "rotary_emb_base": 10000.0},
        "LlamaForCausalLM": {"rope_theta": 10000.0},
        "plain": {},
    }.items():
        save_folder(build(**(VARIANTS | NATIVE)[name]), tokenizer, tmp_path / name, end_of_text=0)
        assert old_keys.items() <= json.loads((tmp_path / name / "config.json").read_text()).items()
        settings = json.loads((tmp_path / name / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert settings["model_input_names"] == ["input_ids", "attention_mask"]
    code = (tmp_path / "plain/modeling_formerlab.py").read_text()
    imported = set(", ".join(re.findall(r"^from transformers\S* import (.*)", code, re.MULTILINE)).split(", "))
    in_both = {"PretrainedConfig", "PreTrainedModel", "GenerationMixin", "CausalLMOutputWithPast"}
    assert imported == in_both | {"Cache", "DynamicCache", "StaticCache"}


def load_folder(folder):
    return load_causal_lm({"pretrained_model_name_or_path": str(folder)})


def saved(model, tokenizer, folder):
    from transformers import AutoModelForCausalLM

    save_folder(model, tokenizer, folder, end_of_text=0)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")  # otherwise transformers 4 loads float32


def tokens(*shape, seed=0):
    return torch.randint(1, 290, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["no position", "densetokenformer", "grouped"])
def test_a_model_round_trip_is_bit_identical(kind, tmp_path):
    model = build(**VARIANTS[kind])
    loaded = saved(model, None, tmp_path / "model")
    assert loaded.dtype == torch.float64
    assert loaded.config.spec == model.spec.to_dict()
    prompt = tokens(2, 20)
    with torch.no_grad():
        assert torch.equal(loaded(prompt, use_cache=False).logits, model(prompt))
    for decoder in (loaded.decoder, load_folder(tmp_path / "model").decoder):
        state = decoder.state_dict()
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    loaded.save_pretrained(tmp_path / "again")
    again, first = (load_file(tmp_path / name / "model.safetensors") for name in ("again", "model"))
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert sum(tensor.numel() for tensor in first.values()) == model.spec.params()  # a tied head is saved once


def test_left_padded_rows_generate_the_same_as_single_rows(tmp_path):
    loaded = saved(build(**VARIANTS["grouped"]), None, tmp_path / "model")
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


def test_padding_does_not_change_logits(tmp_path):
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


@pytest.mark.parametrize("kind", ["plain", "densetokenformer", "static_hyper_connections"])
def test_hidden_states_are_block_inputs_and_the_final_norm_output(kind, tmp_path):
    loaded, prompt = saved(build(**VARIANTS[kind]), None, tmp_path / "model"), tokens(2, 12)
    mask = torch.ones_like(prompt)
    mask[0, :5] = 0
    block_inputs = []
    record_input = lambda _, inputs: block_inputs.append(inputs[0])  # noqa: E731
    hooks = [block.register_forward_pre_hook(record_input) for block in loaded.decoder.blocks]
    with torch.no_grad():
        out = loaded(prompt, attention_mask=mask, output_hidden_states=True, logits_to_keep=1)
    for hook in hooks:
        hook.remove()
    assert out.logits.shape[1] == 1
    assert all(map(torch.equal, out.hidden_states[:-1], block_inputs))
    assert len(out.hidden_states) == loaded.config.num_hidden_layers + 1
    assert torch.equal((out.hidden_states[-1] @ loaded.decoder.embedding.T)[:, -1:], out.logits)
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    generated = loaded.generate(prompt, output_hidden_states=True, **options)
    assert [len(states) for states in generated.hidden_states] == [len(out.hidden_states)] * 3
    loaded.config.output_hidden_states, loaded.config.return_dict = True, False
    assert len(loaded(prompt)) == 3, "the tuple has logits, cache and hidden states"


def test_logits_to_keep_accepts_indices(tmp_path):
    loaded, prompt = saved(build(position=Learned()), None, tmp_path / "model"), tokens(1, 6)
    selected = loaded(prompt, logits_to_keep=torch.tensor([2])).logits
    torch.testing.assert_close(selected[:, 0], loaded(prompt).logits[:, 2], rtol=0, atol=1e-12)


PACKED_POSITIONS = torch.arange(3).repeat(2)[None]
UNSUPPORTED = {
    "position_ids: inconsistent with the cache and attention_mask; give each text its own row": {
        "position_ids": PACKED_POSITIONS
    },
    "position_ids: inconsistent with the cache": {"position_ids": torch.arange(6)[None] + 1},
    "position_ids: inconsistent with": {
        "position_ids": PACKED_POSITIONS,
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]]),
    },
    "seq_idx: this model does not support packed sequences": {"seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1]])},
    "cu_seq_lens_q: this model does not support": {"cu_seq_lens_q": torch.tensor([0, 3, 6]), "max_length_q": 3},
    "output_attentions: this model does not support this argument": {"output_attentions": True},
    "inputs_embeds: this model does not support this argument": {"inputs_embeds": torch.zeros(1, 6, 16)},
    "attention_maks: this model does not support this argument": {"attention_maks": torch.ones(1, 6)},
    r"attention_mask of shape \(1, 3\)": {"attention_mask": torch.ones(1, 3, dtype=torch.int64)},
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_arguments_are_refused(message, tmp_path):
    loaded = saved(build(position=Learned()), None, tmp_path / "model")
    with pytest.raises(UserError, match=message) as caught:
        loaded(tokens(1, 6), **UNSUPPORTED[message])
    assert isinstance(caught.value, ValueError), "models of transformers raise ValueError"


def test_matching_position_ids_are_accepted(tmp_path):
    loaded, batch = saved(build(position=Learned()), None, tmp_path / "model"), tokens(2, 6)
    for mask in (torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]), torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])):
        positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
        expected = loaded(batch, attention_mask=mask).logits
        assert torch.equal(loaded(batch, attention_mask=mask, position_ids=positions).logits, expected)
    cache = loaded(batch).past_key_values
    loaded(batch, past_key_values=cache, position_ids=torch.arange(6, 12)[None])


def test_the_loss_is_the_mean_over_the_predicted_tokens(tmp_path):
    loaded = saved(build(position=Learned()), None, tmp_path / "model")
    prompt = tokens(2, 12)
    out = loaded(prompt, labels=prompt)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), prompt[:, 1:].flatten())
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_the_tokenizer_is_exported(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    model = saved(build(position=Learned()), tokenizer, tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "the cat sat on an old house"
    assert loaded(text)["input_ids"] == tokenizer.encode(text, add_special_tokens=False).ids
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (0, 0, 48)
    batch = loaded(["the cat", "the dog ran to a mat"], padding=True, return_tensors="pt")
    assert (batch["attention_mask"][:, -1] == 1).all()
    generated = model.generate(**batch, max_new_tokens=4, do_sample=False)
    assert loaded.batch_decode(generated, skip_special_tokens=True)[1].startswith("the dog ran to a mat")


def test_mistakes_give_a_one_line_error(tmp_path):
    model, folder = build(position=Learned()), tmp_path / "model"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(UserError, match=r"other: exists and is not a Hugging Face folder"):
        save_folder(model, None, tmp_path / "other")
    save_folder(model, None, folder)
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    del weights["decoder.final_norm.gain"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    message = r"model: weights decoder.final_norm.gain are missing; .* export the model again"
    with pytest.raises(UserError, match=message):
        load_folder(folder)
    for spec in ({"width": 32}, {"heads": 5}):
        (folder / "config.json").write_text(json.dumps(config | {"spec": config["spec"] | spec}))
        with pytest.raises(UserError, match="not a causal language model") as caught:
            load_folder(folder)
        assert "\n" not in str(caught.value)


def test_code_in_a_model_folder_never_runs(tmp_path, monkeypatch):
    """The test answers "y" to every question that transformers asks."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder, marker = tmp_path / "model", tmp_path / "marker"
    folder.mkdir()
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": classes}))
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    with pytest.raises(UserError) as caught:
        load_causal_lm({"pretrained_model_name_or_path": str(folder)})
    assert str(folder) in str(caught.value)
    assert not marker.exists()
