"""A small checkpoint in the layout of the official Tokenformer code."""

import torch

LAYERS, WIDTH, HEADS, TOKENS, HIDDEN, VOCABULARY = 3, 32, 2, 20, 48, 64
SETTINGS = """{
  "num_layers": 3, "hidden_size": 32, "num_attention_heads": 2,  # a comment, as in the released files
  "qkv_slot_num": 20, "proj_slot_num": 20, "ffn_slot_num": 48, "seq_length": 16, "max_position_embeddings": 16,
  "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": %s, "norm": "layernorm_nonparam",
  "final_norm": "layernorm", "gpt_j_residual": false, "norm_activation_type": "%s", "tokenizer-type": "HFTokenizer",
  "checkpoint_validation_with_forward_pass": False,
}"""
NAMES = ("attention.query", "attention.key", "attention.value", "attention.proj", "mlp")


def random_checkpoint(*, tied=True, vocabulary=VOCABULARY):
    """Return random half-precision weights with the names of the official code."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, std):
        return (std * torch.randn(shape, generator=generator)).half()

    weights = {"sequential.0.word_embeddings.weight": normal(vocabulary, WIDTH, std=0.5)}
    for block in range(2, LAYERS + 2):
        for name in NAMES:
            tokens = HIDDEN if name == "mlp" else TOKENS
            weights[f"sequential.{block}.{name}.key_param_tokens"] = normal(tokens, WIDTH, std=0.3)
            weights[f"sequential.{block}.{name}.value_param_tokens"] = normal(tokens, WIDTH, std=0.3)
    weights[f"sequential.{LAYERS + 3}.norm.weight"] = 1 + normal(WIDTH, std=0.1)
    weights[f"sequential.{LAYERS + 3}.norm.bias"] = normal(WIDTH, std=0.1)
    if not tied:
        weights[f"sequential.{LAYERS + 4}.final_linear.weight"] = normal(vocabulary, WIDTH, std=0.5)
    return weights


def write_checkpoint(folder, weights, *, tied=True, activation="l2_norm_gelu"):
    folder.mkdir(exist_ok=True)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "150M_eval.yml").write_text(SETTINGS % (str(not tied).lower(), activation))
    return folder
