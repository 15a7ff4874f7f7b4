"""The exact claim about Tokenformer's vision models (arXiv:2410.23168)."""

import torch

from formerlab.layers import LayerNorm, Pattention
from formerlab.models.vision import VisionTransformer, VisionTransformerModel

SIZES = {
    "b16_matched": (12, 768, 12, 576, 86e6),
    "b16": (12, 768, 12, 768, 109e6),
    "l16_matched": (24, 1024, 16, 768, 307e6),
    "l16": (24, 1024, 16, 1024, 407e6),
}
"""Layers, width, heads, attention tokens (a feed-forward has four times as many) and printed parameters (Table 9; the
768 feed-forward tokens printed for the matched L/16 are read as 3072)."""


def parameter_counts() -> dict[str, float]:
    """Count the parameters of models built without storage, beside the printed ones."""
    numbers: dict[str, float] = {}
    for item, (layers, width, heads, tokens, printed) in SIZES.items():
        bare = LayerNorm(gain=False, bias=False, eps=1e-6)
        spec = VisionTransformer(
            layers=layers,
            width=width,
            heads=heads,
            norm=bare,
            projection=Pattention(tokens=tokens),
            feedforward=Pattention(tokens=4 * tokens),
        )
        with torch.device("meta"):
            counted = sum(weight.numel() for weight in VisionTransformerModel(spec).parameters())
        numbers |= {f"{item}/parameters_total": float(counted), f"{item}/parameters_printed": printed}
    return numbers
