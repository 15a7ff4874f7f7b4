"""Vision models for timm. Importing this module registers the models.

`tokenformer_{base,base_matched,large,large_matched}_patch16_224` are the published sizes (`models/published.py`). They
accept timm's keyword arguments (num_classes, img_size, in_chans, global_pool, drop_path_rate) and the fields of
`VisionTransformer`. timm does not discover models of other packages, so import this module before `timm.create_model`.
"""

from typing import Any

import torch

from formerlab.models.published import PUBLISHED
from formerlab.models.vision import POOLS, VisionTransformer, VisionTransformerModel
from formerlab.torchvision_shim import ensure_torchvision_imports

ensure_torchvision_imports()

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD  # noqa: E402
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model  # noqa: E402

PUBLISHED_NAMES = {
    "tokenformer_base_patch16_224": "tokenformer-b16",
    "tokenformer_base_matched_patch16_224": "tokenformer-b16-matched",
    "tokenformer_large_patch16_224": "tokenformer-l16",
    "tokenformer_large_matched_patch16_224": "tokenformer-l16-matched",
}
"""Names of published models (`models/published.py`), by timm name."""

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
        for name in PUBLISHED_NAMES
    }
)


def _register(name: str) -> None:
    """Register a model function of this name with timm."""

    def create(pretrained: bool = False, **arguments: Any) -> Any:
        return build_model_with_cfg(_build, name, pretrained, model_cfg=PUBLISHED[PUBLISHED_NAMES[name]], **arguments)

    create.__name__ = create.__qualname__ = name
    register_model(create)


for _name in PUBLISHED_NAMES:
    _register(_name)


def _build(cfg: VisionTransformer, *, num_classes: int, global_pool: str | None = None, **arguments: Any) -> Any:
    """Build a model from timm's arguments. The initial weights depend on torch's global random generator.

    Raises ValueError for a nonzero drop_rate, an unknown global_pool, and an image that is not square.
    """
    if arguments.pop("drop_rate", None):  # timm's train.py always passes drop_rate, by default 0
        raise ValueError("drop_rate: these models have no dropout before the head; use drop_path_rate")
    if global_pool not in (None, *POOLS):
        raise ValueError(f"global_pool={global_pool}: these models support {', '.join(filter(None, POOLS))} and ''")
    field_names = {"in_chans": "channels", "drop_path_rate": "drop_path"}
    fields = {field_names.get(key, key): value for key, value in arguments.items() if value is not None}
    size = fields.pop("img_size", cfg.image)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if height != width:
        raise ValueError(f"img_size={size}: these models support square images only")
    fields |= {"image": height, "classes": max(1, num_classes)} | ({"pool": POOLS[global_pool]} if global_pool else {})
    spec = VisionTransformer.model_validate(cfg.model_dump() | fields)
    model: VisionTransformerModel = spec.build(int(torch.randint(2**31, (), device="cpu")))
    if num_classes == 0 or global_pool == "":
        model.reset_classifier(num_classes, global_pool)
    return model
