"""Compare counts of parameters, FLOPs, path lengths and bytes with closed forms and with the papers' numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from formerlab.cache import Decay, KVCache, PrunedCache
from formerlab.evaluation.timing.complexity import LAYERS, Complexity, layers_needed, longest_path, multiply_adds
from formerlab.layers import DepthWeightedAverage, LayerNorm, Mlp
from formerlab.layers.initialization import without_values
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.models.published import PUBLISHED, create_model
from formerlab.models.translator import Translator, TranslatorModel

TABLE_3: tuple[tuple[dict[str, int], int], ...] = (
    ({}, 65),
    ({"layers": 2}, 36),
    ({"layers": 4}, 50),
    ({"layers": 8}, 80),
    ({"width": 256}, 28),
    ({"width": 1024}, 168),
    ({"hidden": 1024}, 53),
    ({"hidden": 4096}, 90),
    ({"d_key": 16}, 58),
    ({"d_key": 32}, 60),
    ({"hidden": 4096, "width": 1024, "heads": 16}, 213),
)
"""Changed settings of the base model, and printed millions of parameters (Table 3 of arXiv:1706.03762)."""
LANGUAGE_PRINTED = {
    "lm_150m": 150e6,
    "lm_450m": 450e6,
    "lm_900m": 900e6,
    "lm_1_5b": 1.5e9,
    "scale_124m": 124e6,
    "scale_354m": 354e6,
    "scale_757m": 757e6,
    "scale_1_4b": 1.4e9,
}
"""Parameters of the language models in Table 9 of arXiv:2410.23168."""
VISION_PRINTED = {"b16_matched": 86e6, "b16": 109e6, "l16_matched": 307e6, "l16": 407e6}
"""Parameters of the image models in Table 9, which prints 768 instead of 3072 feed-forward tokens for L/16 matched."""
TRANSFORMER_WIDTHS = (768, 1416, 2104)
"""Widths of the 12-layer Transformers in Table 8, which prints their FLOPs per T^2 (attention between tokens)."""
TIMES = (128, 4096)
"""Lengths at which FLOPs are counted. FLOPs are a T + b T^2, so two lengths determine b."""
DENSE_PRINTED = {
    "48-plain": 378.45,
    "64-plain": 491.72,
    "72-plain": 548.35,
    "84-plain": 633.31,
    "90-plain": 675.78,
    "72-1x1": 548.36,
}
"""Millions of parameters in Table 1 of arXiv:2402.02622."""
GRID = Complexity(lengths=(64, 128, 256, 512), widths=(64, 128, 256, 512))
"""Lengths n and widths d for Table 1 of arXiv:1706.03762, with kernel k = 3 and neighbourhood r = 32."""
PLAIN_NORM = LayerNorm(gain=False, bias=False)


def count_parameters(build: Callable[..., nn.Module], spec: object) -> int:
    """Count the parameters of a model that is built without storage."""
    with without_values():
        return sum(weight.numel() for weight in build(spec).parameters())


def transformer_parameters() -> dict[str, float]:
    """Return the largest difference of counts from the closed form, and the number of rows that match the paper.

    A row matches if the counts differ by at most half a million. The paper does not state the vocabulary size, so the
    size with the most matching rows is used.
    """
    specs = []
    for changes, _ in TABLE_3:
        feedforward = Mlp(activation="relu", bias=True, hidden=changes.get("hidden", 2048))
        sizes = {name: size for name, size in changes.items() if name != "hidden"}
        specs.append(Translator().model_copy(update={"feedforward": feedforward, **sizes}))
    worst = max(abs(count_parameters(TranslatorModel, spec) - spec.params()) for spec in specs)
    rows = [(spec.params(embedding=False), spec.width, row[1]) for spec, row in zip(specs, TABLE_3, strict=True)]
    best = max(
        sum(abs((non_embedding + vocabulary * width) / 1e6 - printed) <= 0.5 for non_embedding, width, printed in rows)
        for vocabulary in range(32_000, 45_001, 50)
    )
    return {
        "parameters_closed_form_minus_counted": float(worst),
        "rows_within_half_a_million_of_print_at_best_vocabulary": float(best),
    }


def tokenformer_parameters() -> dict[str, float]:
    """Compare parameter counts of language models with the closed form and the printed sizes."""
    numbers: dict[str, float] = {}
    for item, printed in LANGUAGE_PRINTED.items():
        spec = _tokenformer(item.partition("_")[2].replace("_", "."))
        total, embedding = count_parameters(DecoderModel, spec), spec.vocabulary * spec.width
        tokens = 4 * spec.projection.tokens + spec.feedforward.tokens
        closed = 2 * spec.layers * spec.width * tokens + embedding
        numbers |= {
            f"{item}/parameters_total": float(total),
            f"{item}/parameters_non_embedding": float(total - embedding),
            f"{item}/parameters_printed": printed,
            f"{item}/parameters_closed_form_minus_counted": float(abs(closed - total)),
        }
    return numbers


def vision_parameters() -> dict[str, float]:
    """Compare parameter counts of image models with the printed counts."""
    numbers: dict[str, float] = {}
    for item, printed in VISION_PRINTED.items():
        total = count_parameters(create_model, f"tokenformer-{item.replace('_', '-')}")
        numbers |= {f"{item}/parameters_total": float(total), f"{item}/parameters_printed": printed}
    return numbers


def denseformer_parameters() -> dict[str, float]:
    """Compare the number of mixing weights with the closed form, and parameter counts of the models with Table 1."""
    worst = 0.0
    for depth in (24, 48, 72):
        for k, p in ((1, 1), (2, 1), (4, 1), (12, 1), (4, 5), (4, 4), (4, 15)):
            weights = DepthWeightedAverage(dilation=k, period=p).build(depth).parameters()
            closed = sum(i // k + 1 for i in range(1, depth + 1) if i % p == 0)
            worst = max(worst, abs(sum(weight.numel() for weight in weights) - closed))
    numbers = {"mixing_weights_closed_form_minus_counted": float(worst)}
    for width, heads in ((768, 12), (512, 8)):
        worst = 0.0
        for name, printed in DENSE_PRINTED.items():
            spec = PUBLISHED[f"denseformer-{name}"].model_copy(update={"width": width, "heads": heads})
            worst = max(worst, abs(round(count_parameters(DecoderModel, spec) / 1e6, 2) - printed))
        numbers[f"parameters_millions_against_print_width_{width}"] = worst
    return numbers


def tokenformer_flops() -> dict[str, float]:
    """Compare the FLOPs of a forward pass, excluding logits, with 2 N T + 4 L d T^2 (N: parameters without embedding).

    Also return the coefficients of T^2.
    """
    numbers, worst = {}, 0.0
    for name, size in (("original", "124m"), ("grown", "757m")):
        spec = _tokenformer(size)
        flops = _count_flops(spec)
        numbers[f"token_token_flops_{name}"] = _quadratic_coefficient(flops)
        for time, count in zip(TIMES, flops, strict=True):
            closed = 2 * spec.params(embedding=False) * time + 4 * spec.layers * spec.width * time**2
            worst = max(worst, abs(count / closed - 1))
    for width in TRANSFORMER_WIDTHS:
        heads = width // (64 if width % 64 == 0 else 8)
        spec = Decoder(layers=12, width=width, heads=heads, context=4096, norm=PLAIN_NORM, final_norm=PLAIN_NORM)
        numbers[f"token_token_coefficient_{width}"] = _quadratic_coefficient(_count_flops(spec))
    return {"flops_closed_form_minus_counted_relative": worst} | numbers


def _tokenformer(size: str) -> Any:
    """Return the spec of a published model without parameters in the final norm, which the closed forms omit."""
    return PUBLISHED[f"tokenformer-{size}"].model_copy(update={"context": 4096, "final_norm": PLAIN_NORM})


def _count_flops(spec: Decoder) -> list[int]:
    """Count the FLOPs of matrix products and attention in a forward pass, excluding logits, for each of TIMES."""
    with without_values():
        model = DecoderModel(spec)
    counts = []
    for time in TIMES:
        tokens = torch.zeros(1, time, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens)
        counts.append(int(counter.get_total_flops()) - 2 * time * spec.vocabulary * spec.width)
    return counts


def _quadratic_coefficient(counts: list[int]) -> float:
    """Return b of counts = a T + b T^2 at the lengths TIMES."""
    (first, second), (short, long) = counts, TIMES
    return (second / long - first / short) / (long - short)


def cache_memory() -> dict[str, float]:
    """Return the bytes of a cache that retains 40 % of the keys, divided by the bytes of the full cache."""
    numbers = {}
    for length in (512, 2048, 4096):
        full, pruned = KVCache(capacity=length), PrunedCache(Decay(), round(0.4 * length))
        q, k, v = torch.randn(3, 1, 2, length, 8, generator=torch.Generator().manual_seed(0))
        for cache in (full, pruned):
            cache(0, q, k, v)
        numbers[f"kv_bytes_ratio_{length}"] = pruned.bytes() / full.bytes()
    return numbers


def complexity() -> dict[str, float]:
    """Return log-log slopes of counted multiply-adds over length n and width d, and the largest deviation of path
    lengths from Table 1 of the paper.

    The table omits the projections of self-attention. `slope:self_attention_with_projections:n` includes them; its
    lengths are below its width (2048), so the projections dominate. For a recurrent layer the table has n steps, one
    more than `longest_path`. Two further numbers are path length / (n/k) for convolutions without dilation, and path
    length / (n/r) for restricted attention to r positions in total (r/2 on each side).
    """
    lengths, widths, k, r = GRID.lengths, GRID.widths, GRID.kernel, GRID.neighbourhood
    numbers: dict[str, float] = {}
    for name in LAYERS:
        by_length = [multiply_adds(name, n, widths[0], GRID) for n in lengths]
        by_width = [multiply_adds(name, lengths[0], d, GRID) for d in widths]
        numbers |= {f"slope:{name}:n": _slope(lengths, by_length), f"slope:{name}:d": _slope(widths, by_width)}
    worst = 0.0
    for n in (32, 64, 128):  # maximum path lengths; O(x) is read as x
        table = {"self_attention": 1.0, "recurrent": n, "convolution": math.log(n, k), "restricted": n / r}
        for name in LAYERS:
            path = longest_path(name, n, GRID) + (name == "recurrent")
            worst = max(worst, abs(path - math.ceil(table[name] - 1e-9)))
    return numbers | {
        "slope:self_attention_with_projections:n": _slope(lengths, [_with_projections(n, 2048) for n in lengths]),
        "path_lengths_against_table1_rounded_up": float(worst),
        "path_contiguous_kernels_times_k_over_n": layers_needed(127, lambda layer: k - 1) * k / 128,
        "path_centred_neighbourhood_times_r_over_n": layers_needed(127, lambda layer: r // 2) * r / 128,
    }


def _slope(sizes: tuple[int, ...], counts: list[int]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(counts), 1)[0])


def _with_projections(n: int, d: int) -> int:
    """Count the multiply-adds of the query, key and value projections, attention, and the output projection."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        x, weights = torch.empty(n, d), torch.empty(4, d, d)
        q, k, v = x @ weights[:3]
        _ = (torch.softmax(q @ k.T, dim=-1) @ v) @ weights[3]
    return int(counter.get_total_flops()) // 2
