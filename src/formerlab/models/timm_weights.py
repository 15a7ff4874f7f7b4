"""Weights of timm's Vision Transformers for ours, which computes the same with linear projections."""

from torch import Tensor

from formerlab.errors import UserError
from formerlab.models.vision import VisionTransformer

WHOLE = {
    "cls_token": "class_token.token",
    "pos_embed": "position.rows",
    "patch_embed.proj.weight": "patch_embed.weight",
    "patch_embed.proj.bias": "patch_embed.bias",
    "norm.weight": "final_norm.gain",
    "norm.bias": "final_norm.bias",
    "head.weight": "head.weight",
    "head.bias": "head.bias",
}
"""timm's names of the parameters outside the blocks, and ours."""

IN_BLOCK = {
    "norm1.weight": "attention_norm.gain",
    "norm1.bias": "attention_norm.bias",
    "norm2.weight": "feedforward_norm.gain",
    "norm2.bias": "feedforward_norm.bias",
    "attn.proj.weight": "attention.output.weight",
    "attn.proj.bias": "attention.output.bias",
    "mlp.fc1.weight": "feedforward.inner.weight",
    "mlp.fc1.bias": "feedforward.inner.bias",
    "mlp.fc2.weight": "feedforward.outer.weight",
    "mlp.fc2.bias": "feedforward.outer.bias",
}


def from_timm(state: dict[str, Tensor], spec: VisionTransformer) -> dict[str, Tensor]:
    """Return the weights of a timm ViT under our names, for `VisionTransformerModel.load_state_dict`.

    `spec` must describe the same network: linear projections with bias, pool token, norms with gain and bias. timm
    keeps queries, keys and values in one matrix, which is taken apart. Raises UserError naming a parameter that has no
    counterpart (layer scale, registers, query norms), so that nothing is dropped in silence.
    """
    renamed: dict[str, Tensor] = {}
    for name, weight in state.items():
        block, _, inner = name.removeprefix("blocks.").partition(".")
        if name in WHOLE:
            renamed[WHOLE[name]] = weight
        elif name.startswith("blocks.") and inner in IN_BLOCK:
            renamed[f"blocks.{block}.{IN_BLOCK[inner]}"] = weight
        elif name.startswith("blocks.") and inner in ("attn.qkv.weight", "attn.qkv.bias"):
            for part, third in zip(("query", "key", "value"), weight.chunk(3), strict=True):
                renamed[f"blocks.{block}.attention.{part}.{inner.rpartition('.')[2]}"] = third
        else:
            raise UserError(f"timm's parameter {name} has no counterpart in a VisionTransformer; use a plain ViT")
    renamed["class_token.token"] = renamed["class_token.token"].reshape(spec.width)
    renamed["position.rows"] = renamed["position.rows"].reshape(spec.context, spec.width)
    return renamed
