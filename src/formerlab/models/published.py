"""The published configurations of the papers, by name."""

from fnmatch import fnmatchcase
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from formerlab.errors import UserError, near_misses
from formerlab.layers import DepthWeightedAverage, Identity, LayerNorm, Linear, Mlp, Pattention, Rotary
from formerlab.models.decoder import Decoder
from formerlab.models.translator import Translator
from formerlab.models.vision import VisionTransformer

PLAIN = LayerNorm(gain=False, bias=False)


def _tokenformer(layers: int, width: int, heads: int, tokens: int, *, released: bool = False) -> Decoder:
    """Return a language model of arXiv:2410.23168, Table 9, with `tokens` parameter tokens per projection."""
    pattention = Pattention(tokens=tokens, init="neox" if released else "fan_in")
    return Decoder(
        layers=layers,
        width=width,
        heads=heads,
        context=2048 if released else 1024,
        position=Rotary(fraction=0.25),
        norm=PLAIN,
        projection=pattention,
        feedforward=pattention.model_copy(update={"tokens": 4 * tokens}),
    )


def _denseformer(layers: int, pattern: tuple[int, int] | None) -> Decoder:
    """Return a model of arXiv:2402.02622, Table 1; `pattern` is (dilation, period), or None for the plain model."""
    norm = LayerNorm(bias=False)
    return Decoder(
        layers=layers,
        context=256,
        position=Rotary(interleaved=True),
        norm=norm,
        final_norm=norm,
        depth=Identity() if pattern is None else DepthWeightedAverage(dilation=pattern[0], period=pattern[1]),
    )


def _vision(layers: int, width: int, heads: int, tokens: int | None) -> VisionTransformer:
    """Return a Tokenformer (arXiv:2410.23168, Table 9); without `tokens`, return a ViT (arXiv:2010.11929, Table 1)."""
    sizes: dict[str, Any] = {"layers": layers, "width": width, "heads": heads}
    if tokens is None:
        initial = {"bias": True, "scale_residual": False}
        return VisionTransformer(**sizes, projection=Linear(**initial), feedforward=Mlp(**initial))
    projections = {"projection": Pattention(tokens=tokens), "feedforward": Pattention(tokens=4 * tokens)}
    return VisionTransformer(**sizes, norm=PLAIN.model_copy(update={"eps": 1e-6}), **projections)


PUBLISHED: dict[str, Decoder | Translator | VisionTransformer] = {
    # Language models: the released models, and the four sizes of progressive growth (arXiv:2410.23168, section 4.1).
    "tokenformer-150m": _tokenformer(12, 768, 12, 768, released=True),
    "tokenformer-450m": _tokenformer(24, 1024, 16, 1024, released=True),
    "tokenformer-900m": _tokenformer(32, 1280, 16, 1280, released=True),
    "tokenformer-1.5b": _tokenformer(40, 1536, 16, 1536, released=True),
    "tokenformer-124m": _tokenformer(12, 768, 12, 576),
    "tokenformer-354m": _tokenformer(12, 768, 12, 2140),
    "tokenformer-757m": _tokenformer(12, 768, 12, 4850),
    "tokenformer-1.4b": _tokenformer(12, 768, 12, 8620),
    # Names contain the number of blocks and <dilation>x<period>. The paper states width 512, but its parameter counts
    # need width 768.
    **{f"denseformer-{layers}-plain": _denseformer(layers, None) for layers in (48, 64, 72, 84, 90)},
    **{
        f"denseformer-{layers}-{dilation}x{period}": _denseformer(layers, (dilation, period))
        for layers in (48, 72)
        for dilation, period in ((1, 1), (4, 1), (4, 5))
    },
    # Translators (arXiv:1706.03762, Table 3).
    "transformer-base": Translator(),
    "transformer-big": Translator(
        width=1024, heads=16, feedforward=Mlp(activation="relu", bias=True, hidden=4096), dropout=0.3
    ),
    # Vision models. "matched" models have as many parameters as the ViT. Table 9 of arXiv:2410.23168 states 768
    # feed-forward tokens for the matched L/16, but its 307M parameters need 3072.
    "vit-b16": _vision(12, 768, 12, None),
    "vit-l16": _vision(24, 1024, 16, None),
    "tokenformer-b16": _vision(12, 768, 12, 768),
    "tokenformer-b16-matched": _vision(12, 768, 12, 576),
    "tokenformer-l16": _vision(24, 1024, 16, 1024),
    "tokenformer-l16-matched": _vision(24, 1024, 16, 768),
}


def create_model(name: str, *, seed: int | None = None, **changes: Any) -> nn.Module:
    """Return a published model with random initial weights; `changes` overrides fields of its spec.

    Example: `create_model("tokenformer-150m", vocabulary=32000, context=512)`. `list_models` returns the names. If
    `seed` is None, torch's generator gives the seed. Under `torch.device("meta")` the weights take no memory.

    Raises UserError for an unknown name or field and for invalid values.
    """
    if name not in PUBLISHED:
        raise UserError(f"no published model {name!r}{near_misses(name, list(PUBLISHED))}")
    spec = PUBLISHED[name]
    try:
        spec = type(spec).model_validate(dict(spec) | changes)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UserError(f"{name}: {field + ': ' if field else ''}{first['msg']}") from None
    return spec.build(int(torch.randint(2**31, (), device="cpu")) if seed is None else seed)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of published models that match a shell pattern."""
    return [name for name in PUBLISHED if fnmatchcase(name, pattern)]
