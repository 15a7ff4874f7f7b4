"""Our models of images under timm's names, known to timm once this is imported.

`tokenformer_{base,base_matched,large,large_matched}_patch16_224` are the published sizes (`models/published.py`); they
take timm's keyword arguments (num_classes, img_size, in_chans, global_pool, drop_path_rate) and fields of
`VisionTransformer`. timm has no entry points for models of others.
"""

from typing import Any

import torch

from formerlab.models.published import PUBLISHED
from formerlab.models.vision import POOLS, VisionTransformer, VisionTransformerModel
from formerlab.torchvision_shim import ensure_torchvision_imports

ensure_torchvision_imports()

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD  # noqa: E402
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model  # noqa: E402

NAMES = {
    "tokenformer_base_patch16_224": "tokenformer-b16",
    "tokenformer_base_matched_patch16_224": "tokenformer-b16-matched",
    "tokenformer_large_patch16_224": "tokenformer-l16",
    "tokenformer_large_matched_patch16_224": "tokenformer-l16-matched",
}
"""timm's names, and ours."""

default_cfgs = generate_default_cfgs(
    {
        name: {
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


def _register(name: str) -> None:
    """Register a function of that name, which is how timm knows a model."""

    def create(pretrained: bool = False, **given: Any) -> Any:
        return build_model_with_cfg(_build, name, pretrained, model_cfg=PUBLISHED[NAMES[name]], **given)

    create.__name__ = create.__qualname__ = name
    register_model(create)


for _name in NAMES:
    _register(_name)


def _build(cfg: VisionTransformer, *, num_classes: int, global_pool: str | None = None, **given: Any) -> Any:
    """Build the model with the arguments of timm and its user; initial values follow torch's global generator."""
    if given.pop("drop_rate", None):  # timm's train.py always gives one, by default 0
        raise ValueError("drop_rate: nothing is dropped in front of the head; use drop_path_rate")
    if global_pool not in (None, *POOLS):
        raise ValueError(f"global_pool={global_pool}: these models know {', '.join(filter(None, POOLS))} and ''")
    ours = {"in_chans": "channels", "drop_path_rate": "drop_path"}
    fields = {ours.get(key, key): value for key, value in given.items() if value is not None}
    size = fields.pop("img_size", cfg.image)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if height != width:
        raise ValueError(f"img_size={size}: these models take square images")
    fields |= {"image": height, "classes": max(1, num_classes)} | ({"pool": POOLS[global_pool]} if global_pool else {})
    spec = VisionTransformer.model_validate(cfg.model_dump() | fields)
    model: VisionTransformerModel = spec.build(int(torch.randint(2**31, (), device="cpu")))
    if num_classes == 0 or global_pool == "":
        model.reset_classifier(num_classes, global_pool)
    return model
