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
    "layers": Column("blocks"),
    "lr": Column("peak learning rate (10^-3)", factor=1e3),
    "learning_rate": Column("peak learning rate (10^-3)", factor=1e3),
    **{
        f"{cost}_exponent_{axis}": Column(words, places=2)
        for cost, words in (("counted", "operations"), ("time", "time"), ("memory", "memory"))
        for axis in ("n", "d")
    },
    "complexity": Column("published cost"),
    "change": Column("model"),
    "published_nats": Column("published (nats) ↓"),
    "published_bleu": Column("published BLEU ↑", places=1),
    "published_gain_nats": Column("published gain (nats) ↑"),
    "parameters_non_embedding": Column("parameters without embedding"),
    "tokens": Column("training tokens"),
    "flops_cumulative": Column("cumulative FLOPs"),
    "loss_nats": Column("held-out loss (nats) ↓", LOSS),
    "perplexity": Column("perplexity ↓"),
    "gain_nats": Column("gain (nats) ↑"),
    "loss_minus_dense_nats": Column("loss minus 1x1 (nats) ↓"),
    "loss_minus_start_nats": Column("loss minus early start (nats) ↓"),
    "device": Column("processor"),
    "kept": Column(
        "published, retained (%) ↑", "in percent of the gain when the weights learn from the first step", 100, places=0
    ),
    "start_share": Column("weights learn from"),
    "parameters_added": Column("parameters added", "parameters that the plain Transformer does not have"),
    "decoded_tokens_per_s": Column("decoded tokens/s ↑"),
    "step_time_ratio": Column("step time ratio", "time of a DenseFormer's step divided by a Transformer's"),
    "training_time_hours": Column("training time (h)"),
    "arm": Column("kind of Transformer"),
    "effect_nats": Column("effect on the loss (nats) ↓"),
    "cost_nats": Column("added loss (nats) ↓", places=4),
    "perplexity_tokenformer": Column("perplexity: Tokenformer ↓"),
    "perplexity_5gram": Column("perplexity of a 5-gram model", places=1),
    "difference_nats": Column("loss difference (nats) ↓"),
    "tokens_per_new_parameter": Column("tokens per new parameter", places=0),
    "flops_of_transformer": Column("FLOPs, Transformer"),
    "parameters_with_embedding": Column("with embedding"),
    "minus_net2net_nats": Column("gain minus gain of Net2Net (nats) ↑"),
    "flops_ratio": Column("FLOPs ratio ↓", places=1),
    "parents_ratio": Column("ancestors alone ↓", places=2),
    "hours_ratio": Column("TPU hours relative to a Transformer ↓", places=2),
    "parameters_formula": Column("parameters, formula"),
    "flops_formula": Column("FLOPs, formula"),
    "flops_difference": Column("FLOPs, counted minus formula"),
    "parameters_printed": Column("printed size"),
    "nearer_count_minus_printed_percent": Column("formula minus printed size (%)", places=1),
    "sacrebleu": Column("sacreBLEU ↑", places=1),
    "bleu_minus_base": Column("BLEU minus base ↑", places=1),
    "development_bleu_minus_base": Column("development BLEU minus base ↑", places=1),
    "test_minus_base_nats": Column("test loss (nats) ↓"),
    "loss_minus_base_nats": Column("development loss (nats) ↓"),
    "exact_percent": Column("exact (%) ↑", "translations that equal the reference"),
    "bleu_en_de": Column("BLEU En-De ↑"),
    "bleu_en_fr": Column("BLEU En-Fr ↑"),
    "flops_en_de": Column("FLOPs En-De"),
    "flops_en_fr": Column("FLOPs En-Fr"),
    "top1_percent": Column("top-1 (%) ↑"),
    "top1_points": Column("difference (points) ↑"),
    "error_ratio": Column("error ratio ↓", places=2),
    "accuracy": Column("accuracy (%) ↑", factor=100, places=1),
    "full": Column("Full (%)", factor=100, places=1),
    "h2o": Column("H2O (%)", factor=100, places=1),
    "decay": Column("Decay (%)", factor=100, places=1),
    "decay_minus_h2o": Column("Decay minus H2O (points) ↑", factor=100, places=1),
    "minus_full": Column("minus Full (points) ↑", factor=100, places=1),
    "minus_h2o": Column("minus H2O (points) ↑", factor=100, places=1),
    "chance": Column("chance (%)", factor=100, places=1),
    "on_questions": Column("cache size, questions (%)", factor=100, places=1),
    "cache_megabytes": Column("cache (MB) ↓", places=1),
    "acc_own": Column("own alpha (%) ↑", factor=100, places=1),
    "acc_common": Column("common alpha (%) ↑", factor=100, places=1),
    "gain": Column("gain (points) ↑", factor=100, places=1),
    "acc_float32": Column("float32 (%) ↑", factor=100),
    "acc_model": Column("model's precision (%) ↑", factor=100),
    "difference": Column("difference (points)", factor=100),
    "judged_alike": Column(
        "same outcome (%)", "questions that both runs answer correctly, or both incorrectly", 100
    ),
    "length": Column("prompt length (tokens)"),
    "configuration": Column("policy"),
    "budget": Column("cache budget (%)", "planned cache size, in percent of the tokens", 100),
    "realised_budget": Column("cache size (%)", "measured size, in percent of all keys and values", 100, places=1),
    "recent_share": Column(
        "recent (%)", "most recent tokens, which are always retained, in percent of all tokens", 100
    ),
    "selected_share": Column("selected (%)", "tokens that the score selects, in percent of all tokens", 100),
    "increase_nats": Column("loss minus Full (nats) ↓", "loss with the pruned cache minus loss with the full cache"),

    "speed_ratio": Column("speed / Full ↑"),
    "prompt_ratio": Column("prompt time / Full ↓"),
    "faster_after": Column("faster after (tokens) ↓", places=0),
}  # fmt: skip
UNITS = {"nats": "nats", "percent": "%", "points": "points", "s": "s", "megabytes": "MB"}


def column(name: str) -> Column:
    """Return how tables show a column. The heading of an unlisted column has its unit in brackets."""
    if name in COLUMNS or "(" in name:
        return COLUMNS.get(name) or Column(name.replace("_", " "))
    words = re.sub(r"_per_s$", "/s", name).replace("_", " ").replace("flops", "FLOPs")
    what, _, unit = words.rpartition(" ")
    return Column(f"{what} ({UNITS[unit]})" if what and unit in UNITS else words)


def meanings(headings: Iterable[str]) -> list[str]:
    """Return a line per heading that needs an explanation, and the meaning of the arrows."""
    known = {known.heading: known.meaning for known in COLUMNS.values()}
    headings = list(dict.fromkeys(headings))
    arrows = [words for arrow, words in ARROWS.items() if arrow in " ".join(headings)]
    lines = [f"{heading.rstrip('↓↑ ')}: {known[heading]}." for heading in headings if known.get(heading)]
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
        cells.append(f"{text} [{least}, {most}]".lstrip() if least else f"{text} ± {deviation}" if deviation else text)
    return cells


def _decimals(name: str, values: Series, low: Series, high: Series, error: Series) -> int:
    """Return the decimals of a column.

    Nats have three, points have one. With intervals: two digits of their median half width, but at most three digits of
    the median value. Without intervals: the fewest decimals that show all numbers exactly; if there are none, one more
    digit than the leading one of the median standard error, or three digits.
    """
    if (fixed := 3 if "nats" in name else 1 if "points" in name else None) is not None:
        return fixed
    numbers = np.concatenate([values, low, high, error])
    numbers = np.unique(np.abs(numbers[np.isfinite(numbers)]))
    halves = ((high - low) / 2)[high > low]
    if len(halves):
        most = 2 - _exponent(values[high > low].abs().median())
        return int(np.clip(1 - _exponent(halves.median()), 0, max(most, 0)))
    exact = next((places for places in range(4) if np.allclose(numbers, numbers.round(places), 0, 1e-9)), None)
    if exact is not None:
        return exact
    if error.notna().any():
        return int(np.clip(1 - _exponent(error.median()), 0, 4))
    return int(np.clip(2 - _exponent(float(np.median(numbers[numbers > 0]))), 0, 4))


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
