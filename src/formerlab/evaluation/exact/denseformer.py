"""Exact claims of DenseFormer (arXiv:2402.02622)."""

import torch

from formerlab.layers import DepthWeightedAverage, Identity, LayerNorm
from formerlab.layers.depth.union import DepthMixer
from formerlab.layers.initial import without_values
from formerlab.models.decoder import Decoder, DecoderModel

PRINTED = {(48, 0): 378.45, (64, 0): 491.72, (72, 0): 548.35, (84, 0): 633.31, (90, 0): 675.78, (72, 1): 548.36}
"""Millions of parameters in Table 1, by depth and by whether the averages are 1x1."""

PATTERNS = ((1, 1), (2, 1), (4, 1), (12, 1), (4, 5), (4, 4), (4, 15))
"""Dilation and period whose weights are counted."""


def parameter_counts() -> dict[str, float]:
    """Count mixing weights beside the sum over i divisible by p of floor(i/k) + 1, and models beside Table 1."""
    worst = 0.0
    for depth in (24, 48, 72):
        for k, p in PATTERNS:
            mixer = DepthWeightedAverage(dilation=k, period=p)
            counted = sum(weight.numel() for weight in mixer.build(depth).parameters())
            closed = sum(i // k + 1 for i in range(1, depth + 1) if i % p == 0)
            worst = max(worst, abs(counted - closed))
    return {
        "mixing_weights_closed_form_minus_counted": float(worst),
        "parameters_millions_against_print_width_768": _deviation(768, 12),
        "parameters_millions_against_print_width_512": _deviation(512, 8),
    }


def identity_at_start() -> dict[str, float]:
    """Return the largest difference of logits between averages at their start and the plain stack."""
    tokens = torch.randint(97, (2, 16), generator=torch.Generator().manual_seed(2))
    worst = 0.0
    for k, p in ((1, 1), (4, 1), (4, 5), (12, 1)):
        plain, dense = (
            _decoder(24, 32, 4, mixer, vocabulary=97).build(0)
            for mixer in (Identity(), DepthWeightedAverage(dilation=k, period=p))
        )
        dense.load_state_dict(plain.state_dict(), strict=False)
        with torch.no_grad():
            worst = max(worst, float((plain(tokens) - dense(tokens)).abs().max()))
    return {"dwa_identity_at_start": worst}


def _deviation(width: int, heads: int) -> float:
    worst = 0.0
    for (depth, dense), printed in PRINTED.items():
        spec = _decoder(depth, width, heads, DepthWeightedAverage() if dense else Identity())
        with without_values():
            counted = sum(weight.numel() for weight in DecoderModel(spec).parameters())
        worst = max(worst, abs(round(counted / 1e6, 2) - printed))
    return worst


def _decoder(layers: int, width: int, heads: int, depth: DepthMixer, vocabulary: int = 50304) -> Decoder:
    norm = LayerNorm(gain=True, bias=False)
    return Decoder(
        vocabulary=vocabulary, layers=layers, width=width, heads=heads, norm=norm, final_norm=norm, depth=depth
    )
