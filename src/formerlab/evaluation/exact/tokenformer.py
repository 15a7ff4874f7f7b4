"""Exact claims of Tokenformer (arXiv:2410.23168)."""

import functools
import math

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from formerlab.growth.tokens import InitialKeys, TauRule, grow
from formerlab.layers import LayerNorm, Linear, Mlp, Pattention
from formerlab.layers.initial import without_values
from formerlab.layers.score import l2_gelu
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.models.published import create_model

SIZES = {
    "lm_150m": (12, 768, 768, 3072, 12, 150e6),
    "lm_450m": (24, 1024, 1024, 4096, 16, 450e6),
    "lm_900m": (32, 1280, 1280, 5120, 16, 900e6),
    "lm_1_5b": (40, 1536, 1536, 6144, 16, 1.5e9),
    "scale_124m": (12, 768, 576, 2304, 12, 124e6),
    "scale_354m": (12, 768, 2140, 8560, 12, 354e6),
    "scale_757m": (12, 768, 4850, 19400, 12, 757e6),
    "scale_1_4b": (12, 768, 8620, 34480, 12, 1.4e9),
}
"""Layers, width, attention tokens, feed-forward tokens, heads, printed parameters (Table 9)."""

VISION_PRINTED = {"b16_matched": 86e6, "b16": 109e6, "l16_matched": 307e6, "l16": 407e6}
"""Parameters in Table 9; the 768 feed-forward tokens printed for the matched L/16 are read as 3072."""

TRANSFORMER_WIDTHS = (768, 1416, 2104)
"""Widths of the 12-layer Transformers behind the token-token constants of Table 8."""

TIMES = (128, 4096)
"""Lengths at which FLOPs are counted. They have no constant part, so two tell the one that grows with their square."""


def parameter_counts() -> dict[str, float]:
    """Count the parameters of models built without storage, beside the closed form and the printed sizes."""
    numbers: dict[str, float] = {}
    for item, (layers, width, attention, feedforward, heads, printed) in SIZES.items():
        spec = _tokenformer(layers, width, attention, feedforward, heads)
        with without_values():
            counted = sum(weight.numel() for weight in DecoderModel(spec).parameters())
        closed = 2 * layers * width * (4 * attention + feedforward) + spec.vocabulary * width
        numbers |= {
            f"{item}/parameters_total": float(counted),
            f"{item}/parameters_non_embedding": float(counted - spec.vocabulary * width),
            f"{item}/parameters_printed": printed,
            f"{item}/parameters_closed_form_minus_counted": float(abs(closed - counted)),
        }
    return numbers


def vision_parameter_counts() -> dict[str, float]:
    """Count the parameters of image models built without storage, beside the printed ones."""
    numbers: dict[str, float] = {}
    for item, printed in VISION_PRINTED.items():
        with without_values():
            model = create_model(f"tokenformer-{item.replace('_', '-')}")
        counted = sum(weight.numel() for weight in model.parameters())
        numbers |= {f"{item}/parameters_total": float(counted), f"{item}/parameters_printed": printed}
    return numbers


def flops_formula() -> dict[str, float]:
    """Count the FLOPs of a forward pass without logits, beside 2 N T + 4 L d T^2; and the token-token part."""
    original, grown = (_tokenformer(12, 768, tokens, 4 * tokens, 12) for tokens in (576, 4850))
    counted = {spec: _counted_flops(spec) for spec in (original, grown)}
    worst = 0.0
    for spec, counts in counted.items():
        for time, flops in zip(TIMES, counts, strict=True):
            closed = 2 * spec.params(embedding=False) * time + 4 * spec.layers * spec.width * time**2
            worst = max(worst, abs(flops / closed - 1))
    coefficients = {
        "token_token_flops_original": _quadratic(counted[original]),
        "token_token_flops_grown": _quadratic(counted[grown]),
    }
    for width in TRANSFORMER_WIDTHS:
        heads = width // (64 if width % 64 == 0 else 8)
        spec = Decoder(
            layers=12, width=width, heads=heads, context=4096, norm=_BARE, final_norm=_BARE,
            projection=Linear(), feedforward=Mlp(),
        )  # fmt: skip
        coefficients[f"token_token_coefficient_{width}"] = _quadratic(_counted_flops(spec))
    return {"flops_closed_form_minus_counted_relative": worst} | coefficients


def zero_keys_default_tau() -> dict[str, float]:
    """Return the change of logits when a model grows twofold with zero keys and tau = sqrt(n + m)."""
    return {"growth_zero_keys_tau_sqrt_relative": _change_by_growth("zero", "sqrt")}


def zero_keys_kept_tau() -> dict[str, float]:
    """Return the change with tau kept, and the gradient that the new keys get at the first step."""
    model, tokens = _small_model()
    grown = grow(model, 2, "zero", "keep", seed=1)
    logits = grown(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    squares = 0.0
    for name, weight in grown.named_parameters():
        if name.endswith("keys") and weight.grad is not None:
            old = model.state_dict()[name].shape[0]
            squares += float((weight.grad[old:] ** 2).sum())
    return {
        "growth_zero_keys_tau_keep_relative": _change_by_growth("zero", "keep"),
        "gradient_norm_new_keys": math.sqrt(squares),
    }


def scale_invariance() -> dict[str, float]:
    """Return the largest relative change of a layer's output when an input row or all keys are multiplied."""
    layer = Pattention(tokens=32).build(16, 16).double()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(8, 16, dtype=torch.float64)
        layer.reset_parameters()
        expected, worst = layer(x), 0.0
        for factor in (1e-2, 0.3, 7.0, 1e2):
            worst = max(worst, float((layer(x * factor) - expected).abs().max() / expected.abs().max()))
            keys = layer.keys.clone()
            layer.keys.mul_(factor)
            worst = max(worst, float((layer(x) - expected).abs().max() / expected.abs().max()))
            layer.keys.copy_(keys)
    return {"pattention_scale_invariance_relative": worst}


def jacobian() -> dict[str, float]:
    """Return the largest difference between Appendix A's Jacobian and automatic differentiation.

    dS_i/dA_j = gelu'(Z_i) (1 / sqrt(n)) (1 / ||A||) (n [i = j] - Z_i Z_j) with Z = sqrt(n) A / ||A||.
    """
    worst = 0.0
    for n in (4, 16, 64, 256):
        a = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        automatic = torch.func.jacrev(functools.partial(l2_gelu, tau=math.sqrt(n)))(a)
        z = math.sqrt(n) * a / a.norm()
        slope = torch.func.vmap(torch.func.grad(F.gelu))(z)
        formula = slope[:, None] / (math.sqrt(n) * a.norm()) * (n * torch.eye(n, dtype=torch.float64) - z[:, None] * z)
        worst = max(worst, float((automatic - formula).abs().max()))
    return {"pattention_jacobian": worst}


_BARE = LayerNorm(gain=False, bias=False)


def _tokenformer(layers: int, width: int, attention: int, feedforward: int, heads: int) -> Decoder:
    return Decoder(
        layers=layers, width=width, heads=heads, context=4096, norm=_BARE, final_norm=_BARE,
        projection=Pattention(tokens=attention), feedforward=Pattention(tokens=feedforward),
    )  # fmt: skip


def _counted_flops(spec: Decoder) -> list[int]:
    """Count matrix products and attention of a forward pass at TIMES, without storage and without the logits."""
    with without_values():
        model = DecoderModel(spec)
    counts = []
    for time in TIMES:
        tokens = torch.zeros(1, time, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens)
        counts.append(int(counter.get_total_flops()) - 2 * time * spec.vocabulary * spec.width)
    return counts


def _quadratic(counts: list[int]) -> float:
    """Return the coefficient of T^2 in counts a T + b T^2 at TIMES."""
    (first, second), (short, long) = counts, TIMES
    return (second / long - first / short) / (long - short)


def _small_model() -> tuple[DecoderModel, torch.Tensor]:
    spec = Decoder(
        vocabulary=97, layers=3, width=32, heads=4, context=24, embedding_std=0.5, norm=_BARE,
        projection=Pattention(tokens=24), feedforward=Pattention(tokens=96),
    )  # fmt: skip
    tokens = torch.randint(97, (4, 24), generator=torch.Generator().manual_seed(2))
    return spec.build(0).double(), tokens


def _change_by_growth(keys: InitialKeys, tau: TauRule) -> float:
    model, tokens = _small_model()
    with torch.no_grad():
        before, after = model(tokens), grow(model, 2, keys, tau, seed=1)(tokens)
    return float((after - before).abs().max() / before.std())
