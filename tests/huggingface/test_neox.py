"""Imported checkpoints match the formulas of the official GPU code, which are written here in plain torch."""

import math

import pytest
import torch
from released import HEADS, LAYERS, VOCABULARY, WIDTH, random_checkpoint, write_checkpoint
from torch.nn import functional as F

from formerlab.errors import UserError
from formerlab.integrations.huggingface.neox import load_released


def scores(a, activation):
    n = a.shape[-1]
    if activation == "l2_norm_gelu":
        return F.gelu(a / a.pow(2).sum(-1, keepdim=True).sqrt() * math.sqrt(n))
    if activation == "gelu_l2_norm":
        return F.gelu(a) / F.gelu(a).pow(2).sum(-1, keepdim=True).sqrt() * math.sqrt(n)
    return a.exp() / a.exp().sum(-1, keepdim=True) * n


def standardised(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def rotated(x):
    """Rotate the first quarter of each head's channels with float32 sine and cosine, as the models do."""
    channels = x.shape[-1] // 4
    out = x.clone()
    for t in range(x.shape[0]):
        for i in range(channels // 2):
            angle = t * 10000 ** (-2 * i / channels)
            c, s = (float(torch.tensor(f(angle), dtype=torch.float32)) for f in (math.cos, math.sin))
            a, b = x[t, :, i], x[t, :, i + channels // 2]
            out[t, :, i], out[t, :, i + channels // 2] = a * c - b * s, b * c + a * s
    return out


def attended(q, k, v):
    out = torch.zeros_like(v)
    for head in range(HEADS):
        for t in range(len(q)):
            p = (k[: t + 1, head] @ q[t, head] / math.sqrt(WIDTH // HEADS)).softmax(0)
            out[t, head] = p @ v[: t + 1, head]
    return out.flatten(1)


def naive_logits(weights, tokens, activation):
    """Return the double-precision logits of one sequence, computed with the published formulas."""
    w = {name: tensor.double() for name, tensor in weights.items()}

    def pattention(x, name):
        return scores(x @ w[f"{name}.key_param_tokens"].T, activation) @ w[f"{name}.value_param_tokens"]

    x = w["sequential.0.word_embeddings.weight"][tokens]
    for block in range(2, LAYERS + 2):
        name, y = f"sequential.{block}.attention", standardised(x)
        q, k, v = (pattention(y, f"{name}.{layer}").view(len(x), HEADS, -1) for layer in ("query", "key", "value"))
        x = x + pattention(attended(rotated(q), rotated(k), v), f"{name}.proj")
        x = x + pattention(standardised(x), f"sequential.{block}.mlp")
    x = standardised(x) * w[f"sequential.{LAYERS + 3}.norm.weight"] + w[f"sequential.{LAYERS + 3}.norm.bias"]
    return x @ w.get(f"sequential.{LAYERS + 4}.final_linear.weight", w["sequential.0.word_embeddings.weight"]).T


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_imported_checkpoints_match_the_official_formulas(tied, activation, tmp_path):
    weights = random_checkpoint(tied=tied)
    model = load_released(write_checkpoint(tmp_path, weights, tied=tied, activation=activation))
    assert (model.spec.tied, model.spec.heads, model.spec.context) == (tied, HEADS, 16)
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([naive_logits(weights, row, activation) for row in tokens])
    torch.testing.assert_close(model.double()(tokens), expected, rtol=0, atol=1e-10)


def test_unknown_and_misshapen_tensors_are_refused(tmp_path):
    weights = random_checkpoint()
    extra = weights | {"sequential.2.attention.rotary.weight": torch.ones(3)}
    assert "sequential.2.attention.rotary.weight is unknown" in refusal(write_checkpoint(tmp_path, extra))
    wrong = weights | {"sequential.3.attention.value.key_param_tokens": torch.ones(20, 31)}
    message = "sequential.3.attention.value.key_param_tokens has shape (20, 31), but the model needs (20, 32)"
    assert message in refusal(write_checkpoint(tmp_path, wrong))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"num_layers": 3', '"num_layers": 4', "num_layers is 4 in the settings, but 3 in the tensors"),
        ('"proj_slot_num": 20', '"proj_slot_num": 24', "proj_slot_num is 24 in the settings, but 20 in the tensors"),
        ("layernorm_nonparam", "rmsnorm", "norm is 'rmsnorm' in the settings"),
        ("l2_norm_gelu", "relu", "norm_activation_type 'relu' is not supported; use l2_norm_gelu, gelu_l2"),
        ('"pos_emb": "rotary"', '"pos_emb": "alibi"', "pos_emb 'alibi' is not supported"),
        ('"num_attention_heads"', '"heads"', "num_attention_heads is missing in the settings; add it to the .yml file"),
        ('"num_attention_heads": 2', '"num_attention_heads": 5', "heads=5 does not divide width=32"),
        ("{", "{{", "not valid YAML"),
    ],
)
def test_unsupported_settings_are_refused(old, new, message, tmp_path):
    path = write_checkpoint(tmp_path, random_checkpoint()) / "150M_eval.yml"
    path.write_text(path.read_text().replace(old, new))
    assert message in refusal(tmp_path)


def test_a_folder_without_settings_must_be_a_released_size(tmp_path):
    (write_checkpoint(tmp_path, random_checkpoint()) / "150M_eval.yml").unlink()
    size = "3 layers of width 32 with 20 parameter tokens"
    message = f"{size} is not a released size (arXiv:2410.23168, Table 9); give its .yml file with --config"
    assert message in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing")
    assert "pytorch_model.bin: not a file of tensors" in refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    assert "contains no Tokenformer checkpoint" in refusal(tmp_path)


def refusal(folder):
    with pytest.raises(UserError) as caught:
        load_released(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)
