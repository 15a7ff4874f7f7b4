"""Convert decoders to the native LLaMA or GPT-NeoX layout of transformers, if the spec allows it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from formerlab.layers import LayerNorm, Linear, Mlp, RMSNorm, Rotary
from formerlab.layers.depth.identity import Identity
from formerlab.layers.position import RotaryEncoding
from formerlab.models.decoder import Decoder, DecoderModel

NamedWeights = Iterator[tuple[str, Tensor]]
"""Pairs of a name in transformers and a weight."""

SUPPORTED_FIELDS = {
    *("kind", "vocabulary", "layers", "width", "heads", "key_heads", "context", "position", "norm", "final_norm"),
    *("projection", "feedforward", "depth", "tied", "embedding_std", "logit_scale", "dropout"),
}
"""Fields of a spec that these layouts support; a model that sets another field cannot be converted."""
NORMS = {"attention_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}
"""Names of a block's norms in LLaMA and GPT-NeoX."""
LLAMA_NAMES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feedforward.gate": "mlp.up_proj",
    "feedforward.inner": "mlp.gate_proj",
    "feedforward.outer": "mlp.down_proj",
}
NEOX_MLP_NAMES = {"feedforward.inner": "mlp.dense_h_to_4h", "feedforward.outer": "mlp.dense_4h_to_h"}


def to_native(model: DecoderModel) -> PreTrainedModel | None:
    """Return the model in the layout of LLaMA or GPT-NeoX, or None if these layouts do not support all its layers."""
    spec = model.spec
    rotary, norm, mlp = spec.position, spec.final_norm, spec.feedforward
    if not (isinstance(spec.depth, Identity) and isinstance(spec.projection, Linear) and isinstance(mlp, Mlp)):
        return None
    unsupported = {name: field.default for name, field in Decoder.model_fields.items() if name not in SUPPORTED_FIELDS}
    if any(getattr(spec, name) != default for name, default in unsupported.items()):
        return None
    if not isinstance(rotary, Rotary) or type(spec.norm) is not type(norm) or spec.norm.eps != norm.eps:
        return None
    d_head, rotated = spec.width // spec.heads, int(spec.width // spec.heads * rotary.fraction)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.base}
    sizes: dict[str, Any] = {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": mlp.width(spec.width),
        "max_position_embeddings": spec.context,
        "tie_word_embeddings": spec.tied,
        "attention_bias": spec.projection.bias,
        "dtype": model.embedding.dtype,
        "rope_parameters": rope,
    }
    model_class: Any
    config: Any
    if isinstance(norm, RMSNorm) and mlp.activation == "swiglu" and rotated == d_head and d_head % 2 == 0:
        key_heads = spec.key_heads or spec.heads
        config = LlamaConfig(**sizes, num_key_value_heads=key_heads, rms_norm_eps=norm.eps, mlp_bias=mlp.bias)
        model_class, weights = LlamaForCausalLM, _llama_weights(model)
    elif isinstance(norm, LayerNorm) and mlp.activation != "swiglu" and rotated % 2 == 0 and spec.key_heads is None:
        rope["partial_rotary_factor"] = rotary.fraction
        options = {"layer_norm_eps": norm.eps, "hidden_act": mlp.activation, "use_parallel_residual": False}
        config = GPTNeoXConfig(**sizes, **options)
        model_class, weights = GPTNeoXForCausalLM, _neox_weights(model)
    else:
        return None
    with torch.device("meta"):
        converted: PreTrainedModel = model_class(config)
    detached = {name: weight.detach() for name, weight in weights}
    unexpected = converted.load_state_dict(detached, strict=False, assign=True).unexpected_keys
    if model.head is not None:  # the name of the head differs between releases of transformers
        converted.get_output_embeddings().weight = nn.Parameter(model.head.detach())
    converted.tie_weights()
    missing = [name for name, weight in converted.named_parameters() if weight.is_meta]
    assert not [*missing, *unexpected], (missing, unexpected)
    return converted


def _norm_weights(model: DecoderModel, layer: Any, native_name: str, factor: float = 1.0) -> NamedWeights:
    """Yield the gain and bias of a norm times `factor`; a norm without them has a gain of ones and a bias of zeros."""
    gain = model.embedding.new_ones(layer.width) if layer.gain is None else layer.gain
    yield f"{native_name}.weight", (factor * gain).to(model.embedding)
    if layer.centred:
        bias = model.embedding.new_zeros(layer.width) if layer.bias is None else layer.bias
        yield f"{native_name}.bias", (factor * bias).to(model.embedding)


def _block_weights(model: DecoderModel, block: nn.Module, native_names: dict[str, str]) -> NamedWeights:
    """Yield (native name, weight) of a block's norms, and of its linear layers in `native_names`."""
    for name, native_name in NORMS.items():
        yield from _norm_weights(model, block.get_submodule(name), native_name)
    for name, native_name in native_names.items():
        for kind, weight in block.get_submodule(name).named_parameters():
            yield f"{native_name}.{kind}", weight


def _split_heads(model: DecoderModel, value: Tensor) -> Tensor:
    """Return rows of a projection reshaped to (heads, d_head, ...)."""
    return value.reshape(-1, model.spec.width // model.spec.heads, *value.shape[1:])


def _deinterleave(model: DecoderModel, value: Tensor) -> Tensor:
    """Reorder the rows of a query or key projection from interleaved pairs to halves, which native layouts expect."""
    assert isinstance(model.position, RotaryEncoding)
    if not model.position.interleaved:
        return value
    heads, rotated = _split_heads(model, value), model.position.rotated
    return torch.cat((heads[:, 0:rotated:2], heads[:, 1:rotated:2], heads[:, rotated:]), 1).flatten(0, 1)


def _llama_weights(model: DecoderModel) -> NamedWeights:
    yield "model.embed_tokens.weight", model.embedding
    yield from _norm_weights(model, model.final_norm, "model.norm", model.logit_factor)
    for index, block in enumerate(model.blocks):
        for name, weight in _block_weights(model, block, LLAMA_NAMES):
            is_rotated = name.startswith(("self_attn.q_proj", "self_attn.k_proj"))
            yield f"model.layers.{index}.{name}", _deinterleave(model, weight) if is_rotated else weight


def _neox_weights(model: DecoderModel) -> NamedWeights:
    yield "gpt_neox.embed_in.weight", model.embedding
    yield from _norm_weights(model, model.final_norm, "gpt_neox.final_layer_norm", model.logit_factor)
    for index, block in enumerate(model.blocks):
        prefix = f"gpt_neox.layers.{index}"
        for name, weight in _block_weights(model, block, NEOX_MLP_NAMES | {"attention.output": "attention.dense"}):
            yield f"{prefix}.{name}", weight
        for name, native_name in NEOX_MLP_NAMES.items():
            layer = block.get_submodule(name)
            if layer.bias is None:  # GPT-NeoX always has a bias here
                yield f"{prefix}.{native_name}.bias", model.embedding.new_zeros(len(layer.weight))
        for kind, query in block.get_submodule("attention.query").named_parameters():
            key, value = (block.get_submodule(f"attention.{name}").get_parameter(kind) for name in ("key", "value"))
            projections = _deinterleave(model, query), _deinterleave(model, key), value
            fused = torch.cat([_split_heads(model, projection) for projection in projections], 1).flatten(0, 1)
            yield f"{prefix}.attention.query_key_value.{kind}", fused
