"""Tiny random models of transformers."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from formerlab.torchvision_shim import ensure_torchvision_imports

VOCABULARY, CONTEXT = 290, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.4,  # makes attention uneven, so that pruning changes results
}
LATENT = {
    **{"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12},
    **{"n_routed_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    **{"num_key_value_heads": 4, "intermediate_size": 64, "first_k_dense_replace": 1},
}
"""Latent attention of DeepSeek: keys have 16 channels and values 12."""
SPECIAL_TOKEN_IDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def build(kind, **changes):
    """Return a double-precision model. llama has two query heads per key-value head, and opt has learned positions."""
    ensure_torchvision_imports()
    import transformers

    kinds = {
        "llama": ("Llama", {"num_key_value_heads": 2, "intermediate_size": 64}),
        "qwen2": ("Qwen2", {"num_key_value_heads": 2, "intermediate_size": 64}),
        "mistral": ("Mistral", {"num_key_value_heads": 2, "intermediate_size": 64}),
        "cohere": ("Cohere", {"num_key_value_heads": 2, "intermediate_size": 64, "eos_token_id": 1}),
        "smollm3": ("SmolLM3", {"num_key_value_heads": 2, "num_hidden_layers": 4} | SPECIAL_TOKEN_IDS),
        "gemma3": ("Gemma3Text", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": CONTEXT}),
        "gemma2": ("Gemma2", {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8}),
        "neox": ("GPTNeoX", {"intermediate_size": 64}),
        "opt": ("OPT", {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0}),
        "mpt": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": CONTEXT}),
        "deepseek_v3": ("DeepseekV3", LATENT),
        "mamba": ("Mamba", {"state_size": 4}),
        "bloom": ("Bloom", {"n_head": 4, "n_layer": 2}),
    }
    name, settings = kinds[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**(SIZES | settings | changes))
    return getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).double().eval()


def character_tokenizer(**options):
    """Return a tokenizer of single characters."""
    from transformers import PreTrainedTokenizerFast

    alphabet = {chr(index): index for index in range(32, 126)} | {"<unk>": 0}
    tokenizer = Tokenizer(models.WordLevel(alphabet, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def save_with_tokenizer(folder):
    """Save a llama and a tokenizer of single characters; return the folder."""
    build("llama").save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def save(kind, folder, tokenizer, **changes):
    """Save a float32 model and a tokenizer; return the folder."""
    build(kind, **changes).float().save_pretrained(folder)
    from transformers import PreTrainedTokenizerFast

    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def tokens(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
