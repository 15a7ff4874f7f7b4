"""Our decoders in a layout of transformers' own, LLaMA's or GPT-NeoX's, where the spec allows it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from formerlab.layers import LayerNorm, Linear, Mlp, RMSNorm, Rotary
from formerlab.layers.depth.identity import Identity
from formerlab.layers.position import RotaryEncoding
from formerlab.models.decoder import Decoder, DecoderModel

KNOWN = {
    *("kind", "vocabulary", "layers", "width", "heads", "key_heads", "context", "position", "norm", "final_norm"),
    *("projection", "feedforward", "depth", "tied", "embedding_std", "logit_scale", "dropout"),
}
"""Fields of a spec that these layouts can have; a model that sets another field fits neither."""


def native(model: DecoderModel) -> PreTrainedModel | None:
    """Return the model in the layout of LLaMA or GPT-NeoX, or None where neither has all its parts."""
    spec = model.spec
    rotary, norm, mlp = spec.position, spec.final_norm, spec.feedforward
    if not (isinstance(spec.depth, Identity) and isinstance(spec.projection, Linear) and isinstance(mlp, Mlp)):
        return None
    others = {name: field.default for name, field in Decoder.model_fields.items() if name not in KNOWN}
    if any(getattr(spec, name) != default for name, default in others.items()):
        return None
    if not isinstance(rotary, Rotary) or type(spec.norm) is not type(norm) or spec.norm.eps != norm.eps:
        return None
    whole, rotated = spec.width // spec.heads, int(spec.width // spec.heads * rotary.fraction)
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
    kind: Any
    if isinstance(norm, RMSNorm) and mlp.activation == "swiglu" and rotated == whole and whole % 2 == 0:
        more: dict[str, Any] = {
            "num_key_value_heads": spec.key_heads or spec.heads,
            "rms_norm_eps": norm.eps,
            "mlp_bias": mlp.bias,
        }
        kind, config, weights = LlamaForCausalLM, LlamaConfig(**sizes, **more), dict(_llama(model))
    elif isinstance(norm, LayerNorm) and mlp.activation != "swiglu" and rotated % 2 == 0 and spec.key_heads is None:
        rope["partial_rotary_factor"] = rotary.fraction
        more = {"layer_norm_eps": norm.eps, "hidden_act": mlp.activation, "use_parallel_residual": False}
        kind, config, weights = GPTNeoXForCausalLM, GPTNeoXConfig(**sizes, **more), dict(_neox(model))
    else:
        return None
    with torch.device("meta"):
        made: PreTrainedModel = kind(config)
    read = made.load_state_dict({name: weight.detach() for name, weight in weights.items()}, strict=False, assign=True)
    if model.head is not None:  # whose name differs between releases
        made.get_output_embeddings().weight = torch.nn.Parameter(model.head.detach())
    made.tie_weights()
    lacking = [name for name, weight in made.named_parameters() if weight.is_meta]
    assert not [*lacking, *read.unexpected_keys], (lacking, read.unexpected_keys)
    return made


def _norm(layer: Any, factor: float = 1.0) -> Iterator[tuple[str, Tensor]]:
    """Yield gain and bias of norms, ones and zeros where a norm has none; the last includes a factor of the logits."""
    like = next(iter(layer.parameters()), torch.empty(layer.width))
    yield "weight", factor * (torch.ones_like(like) if layer.gain is None else layer.gain)
    if layer.centred:
        yield "bias", factor * (torch.zeros_like(like) if layer.bias is None else layer.bias)


def _parts(model: DecoderModel, at: str, linear: dict[str, str], norms: dict[str, str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the blocks, whose names begin with `at`: those of linear layers and of norms, by ours."""
    for index, block in enumerate(model.blocks):
        for ours, theirs in linear.items():
            for name, weight in block.get_submodule(ours).named_parameters():
                yield f"{at}.{index}.{theirs}.{name}", weight
        for ours, theirs in norms.items():
            for name, value in _norm(block.get_submodule(ours)):
                yield f"{at}.{index}.{theirs}.{name}", value.to(model.embedding)


def _by_head(model: DecoderModel, value: Tensor) -> Tensor:
    return value.reshape(-1, model.spec.width // model.spec.heads, *value.shape[1:])


def _in_halves(model: DecoderModel, value: Tensor) -> Tensor:
    """Return rows of queries or keys reordered for a rotation of halves, where ours rotates neighbours."""
    assert isinstance(model.position, RotaryEncoding)
    if not model.position.interleaved:
        return value
    heads, turned = _by_head(model, value), model.position.rotated
    return torch.cat((heads[:, 0:turned:2], heads[:, 1:turned:2], heads[:, turned:]), 1).flatten(0, 1)


def _final(model: DecoderModel, theirs: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in _norm(model.final_norm, model.logit_factor):
        yield f"{theirs}.{name}", value.to(model.embedding)


NORMS = {"attention_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}


def _llama(model: DecoderModel) -> Iterator[tuple[str, Tensor]]:
    inner = {
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "feedforward.gate": "mlp.up_proj",
        "feedforward.inner": "mlp.gate_proj",
        "feedforward.outer": "mlp.down_proj",
    }
    turned = {"attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj"}
    yield "model.embed_tokens.weight", model.embedding
    yield from _final(model, "model.norm")
    yield from _parts(model, "model.layers", inner, NORMS)
    yield from ((name, _in_halves(model, value)) for name, value in _parts(model, "model.layers", turned, {}))


def _neox(model: DecoderModel) -> Iterator[tuple[str, Tensor]]:
    outer = {"feedforward.inner": "mlp.dense_h_to_4h", "feedforward.outer": "mlp.dense_4h_to_h"}
    yield "gpt_neox.embed_in.weight", model.embedding
    yield from _final(model, "gpt_neox.final_layer_norm")
    yield from _parts(model, "gpt_neox.layers", outer | {"attention.output": "attention.dense"}, NORMS)
    for index, block in enumerate(model.blocks):
        at = f"gpt_neox.layers.{index}"
        for ours, theirs in outer.items():
            layer = block.get_submodule(ours)
            if layer.bias is None:  # theirs always has one
                yield f"{at}.{theirs}.bias", model.embedding.new_zeros(len(layer.weight))
        for name, query in block.get_submodule("attention.query").named_parameters():
            key, value = (block.get_submodule(f"attention.{part}").get_parameter(name) for part in ("key", "value"))
            parts = _in_halves(model, query), _in_halves(model, key), value
            fused = torch.cat([_by_head(model, part) for part in parts], 1).flatten(0, 1)
            yield f"{at}.attention.query_key_value.{name}", fused
