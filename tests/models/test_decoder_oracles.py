"""Models of other libraries with the same weights give the same logits; tests/huggingface has GPT-NeoX."""

import pytest
import torch
from variation import perturb

from formerlab.layers import Learned, Linear, Mlp, RMSNorm, Rotary
from formerlab.models import Decoder
from formerlab.torchvision_shim import ensure_torchvision_imports

ensure_torchvision_imports()
transformers = pytest.importorskip("transformers")

SIZES = {"vocabulary": 23, "layers": 3, "width": 24, "heads": 2, "context": 16}


def test_gpt2_gives_the_same_logits():
    spec = Decoder(**SIZES, position=Learned(), projection=Linear(bias=True), feedforward=Mlp(bias=True))
    model = perturb(spec.build(0), 0.2).double()
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=16, n_embd=24, n_layer=3, n_head=2, activation_function="gelu"
    )
    oracle = transformers.GPT2LMHeadModel(config).double().eval()
    oracle.load_state_dict(gpt2_names(model))
    tokens = torch.randint(23, (2, 16))
    torch.testing.assert_close(model(tokens), oracle(tokens).logits, atol=1e-10, rtol=1e-10)


def gpt2_names(model):
    state = {
        "transformer.wte.weight": model.embedding,
        "lm_head.weight": model.embedding,
        "transformer.wpe.weight": model.position.rows,
        **norm_names(model.final_norm, "transformer.ln_f"),
    }
    for i, block in enumerate(model.blocks):
        prefix = f"transformer.h.{i}"
        attention = block.attention
        state |= norm_names(block.attention_norm, f"{prefix}.ln_1") | norm_names(
            block.feedforward_norm, f"{prefix}.ln_2"
        )
        for name, linears in {
            "attn.c_attn": (attention.query, attention.key, attention.value),
            "attn.c_proj": (attention.output,),
            "mlp.c_fc": (block.feedforward.inner,),
            "mlp.c_proj": (block.feedforward.outer,),
        }.items():  # GPT-2 stores its matrices transposed
            state[f"{prefix}.{name}.weight"] = torch.cat([linear.weight for linear in linears]).T
            state[f"{prefix}.{name}.bias"] = torch.cat([linear.bias for linear in linears])
    return state


def norm_names(norm, prefix):
    return {f"{prefix}.weight": norm.gain, f"{prefix}.bias": norm.bias}


QWEN = {"heads": 4, "key_heads": 2, "query_key_norm": RMSNorm(eps=1e-5)}
"""Grouped-query attention with normalised queries and keys."""


def test_qwen_gives_the_same_logits():
    """tests/huggingface/test_model_folders.py has LLaMA and GPT-NeoX."""
    swiglu = Mlp(activation="swiglu")
    spec = Decoder(**SIZES | QWEN, position=Rotary(), norm=RMSNorm(), final_norm=RMSNorm(), feedforward=swiglu)
    model = perturb(spec.build(0), 0.2)
    config = transformers.Qwen3Config(
        vocab_size=23,
        hidden_size=24,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.key_heads,
        head_dim=24 // spec.heads,
        max_position_embeddings=16,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    oracle = transformers.Qwen3ForCausalLM(config).eval()
    oracle.load_state_dict(llama_names(model))
    tokens = torch.randint(23, (2, 16))
    torch.testing.assert_close(model(tokens), oracle(tokens).logits, atol=2e-5, rtol=1e-4)


def llama_names(model):
    state = {
        "model.embed_tokens.weight": model.embedding,
        "lm_head.weight": model.embedding,
        "model.norm.weight": model.final_norm.gain,
    }
    for i, block in enumerate(model.blocks):
        weights_by_name = {
            "input_layernorm": block.attention_norm.gain,
            "post_attention_layernorm": block.feedforward_norm.gain,
            "self_attn.q_proj": block.attention.query.weight,
            "self_attn.k_proj": block.attention.key.weight,
            "self_attn.v_proj": block.attention.value.weight,
            "self_attn.o_proj": block.attention.output.weight,
            "self_attn.q_norm": block.attention.query_norm.gain,
            "self_attn.k_norm": block.attention.key_norm.gain,
            "mlp.gate_proj": block.feedforward.inner.weight,
            "mlp.up_proj": block.feedforward.gate.weight,
            "mlp.down_proj": block.feedforward.outer.weight,
        }
        state |= {f"model.layers.{i}.{name}.weight": weight for name, weight in weights_by_name.items()}
    return state
