"""Load released Tokenformer checkpoints as a `DecoderModel`. The official code is a fork of GPT-NeoX.

The model is a sequence of modules: 0 is the embedding, 2 to L + 1 are the L blocks, L + 3 is the final norm, and L + 4
is an untied head (1 and L + 2 have no weights). A block has five Pattention layers with `key_param_tokens` and
`value_param_tokens`; its norms have no parameters (arXiv:2410.23168, section 4.4). The rotary position embedding covers
a quarter of each head.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from formerlab.errors import UserError, reason
from formerlab.layers import LayerNorm, NoPosition, Pattention, Rotary
from formerlab.layers.score import ScoreName
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.yaml_files import read_yaml

Weights = dict[str, Tensor]
WEIGHTS_FILE = "pytorch_model.bin"


def read_weights(path: Path) -> Weights:
    """Return the tensors of a checkpoint by name, `sequential.<module>.<...>`.

    Pickled objects other than tensors are not loaded. Raises UserError for a missing or damaged file.
    """
    if not path.is_file():
        raise UserError(f"{path.parent}: contains no Tokenformer checkpoint ({WEIGHTS_FILE})")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file may raise any error
        cause = reason(error).partition(". ")[0]
        raise UserError(f"{path}: not a file of tensors ({cause}); fetch it again, or save only its weights") from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: not a mapping of names to tensors; save only the model's weights")
    return content


def read_settings(folder: Path, config: Path | None) -> dict[str, Any]:
    """Return the settings from `config` or the folder's .yml file, or {}. Raises UserError for several .yml files."""
    files = sorted(folder.glob("*.yml")) if config is None else [config]
    if len(files) > 1:
        raise UserError(f"{folder}: contains {len(files)} .yml files; name one with --config")
    if not files:
        return {}
    return {str(key).replace("-", "_"): value for key, value in read_yaml(Path(), str(files[0])).items()}


RELEASED_HEADS = {(12, 768): 12, (24, 1024): 16, (32, 1280): 16, (40, 1536): 16}
"""Attention heads by (layers, width) of the released sizes, 150M to 1.5B (arXiv:2410.23168, Table 9)."""
SCORES: dict[str, ScoreName] = {"l2_norm_gelu": "l2_gelu", "gelu_l2_norm": "gelu_l2", "softmax": "exp_l1"}
RELEASED_SETTINGS = {"rotary_pct": 0.25, "max_position_embeddings": 2048, "final_norm": "layernorm"}
"""Settings of all released sizes, used for a folder without a .yml file."""
REQUIRED_SETTINGS = {"norm": "layernorm_nonparam", "gpt_j_residual": False, "use_mup": False, "mlp_type": "regular"}
"""Settings with only one supported value."""
PROJECTIONS = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "proj": "attention.output",
}
COMPUTED_TENSORS = re.compile(r"sequential\.\d+\.attention\.rotary_emb\.inv_freq")
"""Tensors that some versions save; the model computes them from the settings, so they are ignored."""


def load_released(folder: Path, config: Path | None = None) -> DecoderModel:
    """Load a checkpoint in the layout of the official code as a float32 model in evaluation mode.

    The shapes of the tensors determine the sizes. The other settings come from the .yml file of the official code
    (`config`, or the .yml file in the folder), by default from RELEASED_HEADS and RELEASED_SETTINGS. Raises UserError
    for a missing tensor, an unknown tensor, a wrong shape, and unsupported settings.
    """
    tensors = read_weights(folder / WEIGHTS_FILE)
    weights = {name: tensor for name, tensor in tensors.items() if not COMPUTED_TENSORS.fullmatch(name)}
    spec = released_spec(weights, read_settings(folder, config), folder)
    model = DecoderModel(spec)
    state = model.state_dict()
    names = dict(tensor_names(spec))
    for name in [*names, *sorted(weights.keys() - names.keys())]:
        _check_tensor(folder, name, weights, state[names[name]].shape if name in names else None)
    model.load_state_dict({names[name]: tensor.to(state[names[name]].dtype) for name, tensor in weights.items()})
    return model.eval()


def tensor_names(spec: Decoder) -> Iterator[tuple[str, str]]:
    """Yield (name in the official layout, name in `DecoderModel`) of every tensor."""
    yield "sequential.0.word_embeddings.weight", "embedding"
    for block in range(spec.layers):
        layers = {f"attention.{official}": name for official, name in PROJECTIONS.items()} | {"mlp": "feedforward"}
        for official, name in layers.items():
            for kind in ("key", "value"):
                yield f"sequential.{block + 2}.{official}.{kind}_param_tokens", f"blocks.{block}.{name}.{kind}s"
    for official, name in (("weight", "gain"), ("bias", "bias")):
        if isinstance(spec.final_norm, LayerNorm) and spec.final_norm.gain:
            yield f"sequential.{spec.layers + 3}.norm.{official}", f"final_norm.{name}"
    if not spec.tied:
        yield f"sequential.{spec.layers + 4}.final_linear.weight", "head"


def released_spec(weights: Weights, settings: dict[str, Any], folder: Path) -> Decoder:
    """Return a checkpoint's spec. Raises UserError for missing, unsupported or contradicting settings and tensors."""
    blocks = [int(match[1]) for name in weights if (match := re.match(r"sequential\.(\d+)\.(attention|mlp)\.", name))]
    for required in ("0.word_embeddings.weight", "2.attention.query.key_param_tokens", "2.mlp.key_param_tokens"):
        _check_tensor(folder, f"sequential.{required}", weights, ())
    layers = max(blocks) - 1
    vocabulary, width = weights["sequential.0.word_embeddings.weight"].shape
    tokens, hidden = (len(weights[f"sequential.2.{layer}.key_param_tokens"]) for layer in ("attention.query", "mlp"))
    heads = RELEASED_HEADS.get((layers, width)) if tokens == width else None
    options = settings or RELEASED_SETTINGS | {"num_attention_heads": heads}
    if options.get("num_attention_heads") is None:
        size = f"{layers} layers of width {width} with {tokens} parameter tokens"
        fault = f"{size} is not a released size (arXiv:2410.23168, Table 9); give its .yml file with --config"
        fault = "num_attention_heads is missing in the settings; add it to the .yml file" if settings else fault
        raise UserError(f"{folder}: {fault}")
    sizes = {"num_layers": layers, "hidden_size": width, "qkv_slot_num": tokens, "ffn_slot_num": hidden}
    for key, value in (REQUIRED_SETTINGS | sizes | {"proj_slot_num": tokens}).items():
        if options.get(key, value) != value:
            needed = f"only {value!r} is supported" if key in REQUIRED_SETTINGS else f"{value!r} in the tensors"
            raise UserError(f"{folder}: {key} is {options[key]!r} in the settings, but {needed}")
    norm_options = {"eps": options.get("layernorm_epsilon", 1e-5)}
    # Without the setting final_norm, the final norm has no parameters.
    final_norm_has_parameters = options.get("final_norm") == "layernorm"
    score, position_kind = options.get("norm_activation_type", "l2_norm_gelu"), options.get("pos_emb", "rotary")
    if score not in SCORES:
        raise UserError(f"{folder}: norm_activation_type {score!r} is not supported; use {', '.join(SCORES)}")
    if position_kind not in ("rotary", "none"):
        raise UserError(f"{folder}: pos_emb {position_kind!r} is not supported; use 'rotary' or 'none'")
    rotary = {"fraction": options.get("rotary_pct", 1.0), "base": options.get("rotary_emb_base", 10000)}
    pattention = Pattention(tokens=tokens, score=SCORES[score], init="neox")
    try:
        return Decoder(
            vocabulary=vocabulary,
            layers=layers,
            width=width,
            heads=options["num_attention_heads"],
            context=options.get("max_position_embeddings", options.get("seq_length", 2048)),
            position=Rotary(**rotary) if position_kind == "rotary" else NoPosition(),
            norm=LayerNorm(gain=False, bias=False, **norm_options),
            final_norm=LayerNorm(gain=final_norm_has_parameters, bias=final_norm_has_parameters, **norm_options),
            projection=pattention,
            feedforward=pattention.model_copy(update={"tokens": hidden}),
            tied=not options.get("no_weight_tying", f"sequential.{layers + 4}.final_linear.weight" in weights),
        )
    except ValidationError as error:
        raise UserError(f"{folder}: invalid settings ({error.errors()[0]['msg']})") from None


def _check_tensor(folder: Path, name: str, weights: Weights, shape: tuple[int, ...] | None) -> None:
    """Raise UserError if a tensor is missing, is unknown (`shape` is None) or has another shape (() allows any)."""
    if name not in weights:
        raise UserError(f"{folder}: tensor {name} is missing")
    if shape is None:
        raise UserError(f"{folder}: tensor {name} is unknown in this layout")
    if shape and weights[name].shape != shape:
        actual = tuple(weights[name].shape)
        raise UserError(f"{folder}: tensor {name} has shape {actual}, but the model needs {tuple(shape)}")
