"""The vision models of Tokenformer (arXiv:2410.23168, Tables 2 and 9) under timm's names; imported with timm.

`matched` means as many parameters as the ViT of that size: three quarters of the tokens. The table prints 768
feed-forward tokens for the matched L/16; with four times the attention tokens, 3072, it has the printed 307M
parameters, and that is what stands here. Keyword arguments are timm's (num_classes, img_size, in_chans, global_pool,
drop_path_rate) or fields of `VisionTransformer`.
"""

from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from formerlab.layers.norm import LayerNorm
from formerlab.layers.pattention import Pattention
from formerlab.models.vision import VisionTransformer, VisionTransformerModel
from formerlab.models.vision_features import POOLS

NAMES = ("base", "base_matched", "large", "large_matched")
TIMM_FIELDS = {"in_chans": "channels", "drop_path_rate": "drop_path"}

default_cfgs = generate_default_cfgs(
    {
        f"tokenformer_{name}_patch16_224": {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "fixed_input_size": True,
            "crop_pct": 224 / 256,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "patch_embed",
            "classifier": "head",
            "license": "apache-2.0",
        }
        for name in NAMES
    }
)


def published(layers: int, width: int, heads: int, tokens: int) -> VisionTransformer:
    """Return a vision model of Table 9 with `tokens` per attention projection and four times as many per feed-forward.

    Blocks have norms without parameters, the final norm has gain and bias.
    """
    return VisionTransformer(
        layers=layers,
        width=width,
        heads=heads,
        norm=LayerNorm(gain=False, bias=False, eps=1e-6),
        projection=Pattention(tokens=tokens),
        feedforward=Pattention(tokens=4 * tokens),
    )


@register_model
def tokenformer_base_patch16_224(pretrained: bool = False, **given: Any) -> Any:
    """TokenFormer-B/16: 12 layers of 768 channels, 768 and 3072 tokens, 114.8 M parameters (printed 109M)."""
    return _create("tokenformer_base_patch16_224", published(12, 768, 12, 768), pretrained, given)


@register_model
def tokenformer_base_matched_patch16_224(pretrained: bool = False, **given: Any) -> Any:
    """TokenFormer-B/16, parameter matched: 576 and 2304 tokens, 86.4 M parameters."""
    return _create("tokenformer_base_matched_patch16_224", published(12, 768, 12, 576), pretrained, given)


@register_model
def tokenformer_large_patch16_224(pretrained: bool = False, **given: Any) -> Any:
    """TokenFormer-L/16: 24 layers of 1024 channels, 1024 and 4096 tokens, 404.7 M parameters (printed 407M)."""
    return _create("tokenformer_large_patch16_224", published(24, 1024, 16, 1024), pretrained, given)


@register_model
def tokenformer_large_matched_patch16_224(pretrained: bool = False, **given: Any) -> Any:
    """TokenFormer-L/16, parameter matched: 768 and 3072 tokens, 304.0 M parameters (printed 307M)."""
    return _create("tokenformer_large_matched_patch16_224", published(24, 1024, 16, 768), pretrained, given)


def _create(name: str, spec: VisionTransformer, pretrained: bool, given: dict[str, Any]) -> Any:
    features = {"out_indices": given.pop("out_indices", 3), "feature_cls": "getter"}
    return build_model_with_cfg(_build, name, pretrained, model_cfg=spec, feature_cfg=features, **given)


def _build(cfg: VisionTransformer, *, num_classes: int, global_pool: str | None = None, **given: Any) -> Any:
    """Build the model with what timm and its user ask for; initial values follow torch's global generator."""
    fields = {TIMM_FIELDS.get(key, key): value for key, value in given.items() if value is not None}
    size = fields.pop("img_size", cfg.image)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if height != width:
        raise ValueError(f"img_size={size}: these models take square images")
    spec = VisionTransformer.model_validate(
        cfg.model_dump() | fields | {"image": height, "classes": max(1, num_classes)} | _pool(global_pool)
    )
    model: VisionTransformerModel = spec.build(int(torch.randint(2**31, (), device="cpu")))
    if num_classes == 0 or global_pool == "":
        model.reset_classifier(num_classes, global_pool)
    return model


def _pool(global_pool: str | None) -> dict[str, str]:
    return {"pool": POOLS[global_pool]} if global_pool else {}
