"""Headings, directions and meanings of the columns of tables, and the digits of their numbers.

A heading ends in ↓ if lower is better, and in ↑ if higher is better.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from pandas import Series

ARROWS = {"↓": "↓: lower is better", "↑": "↑: higher is better"}


class Column(NamedTuple):
    """How tables show a column: its numbers are multiplied by `factor` and have `places` decimals, if given."""

    heading: str
    meaning: str = ""
    factor: float = 1.0
    places: int | None = None


LOSS = "mean negative log-likelihood per token of the test data"
COLUMNS = {
    "variant": Column("model"),
    "regime": Column("data set, learning rate schedule"),
    "layers": Column("blocks"),
    "lr": Column("peak learning rate (10^-3)", factor=1e3),
    "learning_rate": Column("peak learning rate (10^-3)", factor=1e3),
    "schedule": Column("schedule", "of the learning rate, and its end as a fraction of the peak"),
    **{
        f"{cost}_exponent_{axis}": Column(f"{words}, exponent of {axis}", places=2)
        for cost, words in (("counted", "operations"), ("time", "time"), ("memory", "memory"))
        for axis in ("n", "d")
    },
    "parameters_non_embedding": Column("parameters without embedding"),
    "tokens": Column("training tokens", "every epoch counts; the tokens of a grown model's parent do not"),
    "tokens_cumulative": Column("cumulative tokens", "training tokens of the model and its ancestors"),
    "flops_cumulative": Column("cumulative FLOPs", "training FLOPs of the model and its ancestors"),
    "loss_nats": Column("held-out loss (nats) ↓", LOSS),
    "perplexity": Column("perplexity ↓", "exp of the mean held-out loss"),
    "loss_minus_plain_nats": Column(
        "loss minus Transformer (nats) ↓", "below zero: lower loss than the Transformer of the same depth and training"
    ),
    "gain_nats": Column("gain (nats) ↑", "loss of the reference model minus loss of this model"),
    "kept": Column(
        "gain retained (%) ↑",
        "mean gain in percent of the gain when the mixing weights are trained from the first step",
        100,
    ),
    "start_share": Column(
        "weights learn after (% of steps)", "0: from the start; 100: never, which is the plain Transformer", 100
    ),
    "sparsity": Column("sparsity (%)", "fraction of the mixing weights of 1x1 that are left out", 100),
    "parameters_added": Column("parameters added", "parameters that the plain Transformer does not have"),
    "inference_batches_per_s": Column("forward passes/s ↑", "batches that are scored without gradients, per second"),
    "forward_batches_per_s": Column("forward passes/s ↑", "batches that are scored without gradients"),
    "training_steps_per_s": Column("training steps/s ↑"),
    "decoded_tokens_per_s": Column("decoded tokens/s ↑"),
    **{
        f"{measure}_time_ratio": Column(f"{words} time / plain ↓", "plain: the Transformer of equal depth")
        for measure, words in (("training_step", "step"), ("forward", "forward"), ("decode", "decoding"))
    },
    "step_time_ratio": Column(
        "step time ratio", "time of a DenseFormer's step divided by the time of a Transformer's step"
    ),
    "training_time_hours": Column("training time (h)"),
    "old_tokens": Column("parent's parameters"),
    "start_minus_parent_nats": Column(
        "jump at growth (nats) ↓",
        "validation loss before the first step minus the parent's last validation loss; zero: growth leaves the loss "
        "unchanged",
    ),
    "loss_minus_published_nats": Column(
        "loss minus published recipe (nats) ↓", "below zero: lower loss than the model grown as published"
    ),
    "loss_minus_default_nats": Column("loss minus default (nats) ↓", "above zero: higher loss than the default"),
    "tokenformer_minus_best_nats": Column(
        "Tokenformer minus this model (nats)", "above zero: the Tokenformer has the higher loss"
    ),
    "tokenformers_lead_nats": Column(
        "Tokenformer's lead (nats)",
        "gain by growth in parameter tokens minus gain by this method; above zero: parameter tokens gain more",
    ),
    "loss_minus_tokenformers_nats": Column(
        "loss minus Tokenformer (nats) ↓", "below zero: lower loss than the grown Tokenformer"
    ),
    "chosen": Column("rate chosen", "the rate with the lowest validation loss among the measured ones"),
    "flops_ratio": Column(
        "FLOPs ratio ↓", "cumulative FLOPs divided by the FLOPs of a Transformer from scratch with the same loss"
    ),
    "parameters_formula": Column("parameters by formula"),
    "flops_formula": Column("FLOPs by formula"),
    "parameters_difference": Column("parameters, record minus formula", "gain and bias of the final norm"),
    "flops_difference": Column("FLOPs, record minus formula"),
    "parameters_printed": Column("printed size"),
    "nearer_count_minus_printed_percent": Column("formula minus printed size (%)", places=1),
    "sequential": Column("sequential operations"),
    "flops_token_token_coefficient": Column("FLOPs / T^2", "4 L d: FLOPs of attention for a context of T tokens"),
    "sacrebleu": Column("sacreBLEU ↑", "the score to compare with other work; its signature is in each translate.json"),
    "compound_split": Column("BLEU as in 2017 ↑", "tokenised, with hyphenated compounds split, as the paper reports"),
    "tokenized_lowercase": Column("BLEU, lowercase ↑"),
    "exact_percent": Column("exact (%) ↑", "translations that equal the reference"),
    "bleu": Column("BLEU ↑"),
    "bleu_en_de": Column("BLEU En-De ↑"),
    "bleu_en_fr": Column("BLEU En-Fr ↑"),
    "top1_percent": Column("top-1 (%) ↑", "test images whose most probable class is right"),
    "top1_points": Column("top-1 difference (points) ↑", "top-1 minus the top-1 of the model in the next column"),
    "compared_with": Column("compared with"),
    "top5_percent": Column("top-5 (%) ↑"),
    "calibration_error": Column("calibration error (%) ↓", "mean distance between confidence and accuracy", 100),
    "mean of five (%) ↑": Column("mean of five (%) ↑"),
    "minus Full (points)": Column("mean minus Full (points) ↑"),
    "minus H2O (points)": Column("mean minus H2O (points) ↑"),
    "acc_own": Column("accuracy, own alpha (%) ↑", factor=100),
    "acc_common": Column("accuracy, common alpha (%) ↑", factor=100),
    "gain": Column("gain (points) ↑", "accuracy with own alphas minus accuracy with the common alpha", 100),
    "acc_float32": Column("accuracy, float32 (%) ↑", factor=100),
    "acc_model": Column("accuracy, model's precision (%) ↑", factor=100),
    "difference": Column("difference (points)", factor=100),
    "judged_alike": Column(
        "same outcome (%)", "questions that both runs answer correctly, or both incorrectly", 100
    ),
    "length": Column("prompt length (tokens)"),
    "task": Column("task"),
    "configuration": Column("policy"),
    "budget": Column("cache budget (%)", "planned cache size, in percent of the tokens", 100),
    "realised_budget": Column("cache size (%)", "measured size, in percent of all keys and values", 100),
    "recent_share": Column(
        "recent (%)", "most recent tokens, which are always retained, in percent of all tokens", 100
    ),
    "selected_share": Column("selected (%)", "tokens that the score selects, in percent of all tokens", 100),
    "increase_nats": Column("loss minus Full (nats) ↓", "loss with the pruned cache minus loss with the full cache"),
    "minus_best_single_nats": Column(
        "minus best shared alpha (nats) ↓", "below zero: lower loss than with the best alpha that all heads share"
    ),
    "minus_published_alpha_nats": Column("minus alpha 0.2 (nats) ↓", "below zero: lower loss than with alpha 0.2"),
    "speed_ratio": Column(
        "speed / Full ↑", "decoding speed divided by the speed of the full cache in the same repetition"
    ),
    "prompt_ratio": Column(
        "prompt time / Full ↓", "time to read the prompt divided by the time with the full cache"
    ),
    "cache_share": Column(
        "cache (% of Full) ↓", "bytes of keys and values in percent of the bytes of the full cache", 100
    ),
    "metadata_megabytes": Column(
        "metadata (MB) ↓", "scores and positions that a pruned cache stores in addition to keys and values"
    ),
}  # fmt: skip
UNITS = {"nats": "nats", "percent": "%", "points": "points", "s": "s", "megabytes": "MB"}


def column(name: str) -> Column:
    """Return how tables show a column. The heading of an unlisted column has its unit in brackets."""
    if name in COLUMNS or "(" in name:
        return COLUMNS.get(name) or Column(name.replace("_", " "))
    words = re.sub(r"_per_s$", "/s", name).replace("_", " ").replace("flops", "FLOPs")
    what, _, unit = words.rpartition(" ")
    return Column(f"{what} ({UNITS[unit]})" if what and unit in UNITS else words)


def meanings(names: Iterable[str]) -> list[str]:
    """Return a line per column that needs an explanation, and the meaning of the arrows."""
    columns = dict.fromkeys(column(name) for name in names)
    headings = " ".join(one.heading for one in columns)
    arrows = [words for arrow, words in ARROWS.items() if arrow in headings]
    lines = [f"{one.heading.rstrip('↓↑ ')}: {one.meaning}." for one in columns if one.meaning]
    return [*lines, *([f"{'; '.join(arrows)}."] if arrows else [])]


def texts(name: str, values: Series, low: Series, high: Series, error: Series) -> list[str]:
    """Return a column as text: `x`, `x [low, high]` or `x ± error`, with the same decimals in all rows."""
    if not all(isinstance(value, int | float) or value is None for value in values):
        return ["" if value is None or value != value else str(value) for value in values]
    factor = column(name).factor
    values, low, high, error = (factor * numbers.astype(float) for numbers in (values, low, high, error))
    places = column(name).places
    if places is None:
        places = _mantissa(values) if name.startswith("flops") else _decimals(name, values, low, high, error)
    cells = []
    for value, *spread in zip(values, low, high, error, strict=True):
        text, least, most, deviation = ("" if math.isnan(x) else number(name, x, places) for x in (value, *spread))
        cells.append(f"{text} [{least}, {most}]" if least else f"{text} ± {deviation}" if deviation else text)
    return cells


def _decimals(name: str, values: Series, low: Series, high: Series, error: Series) -> int:
    """Return the decimals of a column.

    With intervals: two digits of their median half width, but at most three digits of the median value, or four
    decimals of nats. Without intervals: the fewest decimals that show all numbers exactly; if there are none, one more
    digit than the leading one of the median standard error, or three digits.
    """
    numbers = np.concatenate([values, low, high, error])
    numbers, nats = np.unique(np.abs(numbers[np.isfinite(numbers)])), "nats" in name
    halves = ((high - low) / 2)[high > low]
    if len(halves):
        most = 4 if nats else 2 - _exponent(values[high > low].abs().median())
        return int(np.clip(1 - _exponent(halves.median()), 0, max(most, 0)))
    exact = next((places for places in range(4) if np.allclose(numbers, numbers.round(places), 0, 1e-9)), None)
    if exact is not None:
        return max(exact, 3) if nats else exact
    if error.notna().any():
        return int(np.clip(1 - _exponent(error.median()), 0, 4))
    return 3 if nats else int(np.clip(2 - _exponent(float(np.median(numbers[numbers > 0]))), 0, 4))


def _mantissa(values: Series) -> int:
    """Return the decimals of the mantissas of a column: the fewest that show all numbers exactly, or two."""
    return next((n for n in range(2) if all(float(f"{x:.{n}e}") == x for x in values.dropna())), 2)


def _exponent(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else 0


def number(name: str, value: float, places: int) -> str:
    """Return a number with `places` decimals; counts have three digits, and a rounded -0 has no sign."""
    if name in ("lr", "learning_rate"):
        return f"{value:.3g}"
    if name.startswith(("parameters", "tokens")):
        return count(value)
    if name.startswith("flops") and abs(value) >= 1e6:
        return f"{value:.{places}e}".replace("e+", "e").replace("e0", "e")
    return f"{value:z,.{places}f}"


def count(value: float) -> str:
    """Return a count with three digits, or two if they are exact, and the suffix k, M or B."""
    exact = value == float(f"{value:.2g}")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{abs(value):.3g}") >= size:
            return (f"{value / size:g}" if exact else f"{value / size:#.3g}".rstrip(".")) + unit
    return f"{value:.0f}"


def is_spread(name: Any) -> bool:
    """Return whether a column has the end of an interval or an error."""
    return str(name).endswith(("_low", "_high", "_se"))
