"""Headings, directions and meanings of the columns of tables, and the digits of their numbers.

A heading ends in ↓ if lower is better, and in ↑ if higher is better.
"""

import math
import re
from collections.abc import Iterable
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np
from pandas import Series

MINUS = "\N{MINUS SIGN}"
ARROWS = {"↓": "↓: lower is better", "↑": "↑: higher is better"}


class Column(NamedTuple):
    """Display settings of a column: its numbers are multiplied by `factor` and have `places` decimals, if given.

    `null` is the value of the column if there is no effect.
    """

    heading: str
    meaning: str = ""
    factor: float = 1.0
    places: int | None = None
    null: float = 0.0


LOSS = "mean negative log-likelihood per token of the test data"
COLUMNS = {
    "variant": Column("model"),
    "layers": Column("blocks"),
    "lr": Column("peak learning rate (10^-3)", factor=1e3),
    "learning_rate": Column("peak learning rate (10^-3)", factor=1e3),
    "axis": Column("exponent of"),
    "published_exponent": Column("published", places=0),
    "counted_exponent": Column("counted", places=2),
    "time_exponent": Column("time", places=2),
    "time_exponent_largest": Column("time, two largest sizes", places=2),
    "published_path": Column("published path"),
    "published_steps": Column("published sequential operations"),
    "change": Column("model"),
    "published_nats": Column(
        "published ↓",
        "English to German, development split; one head: minus the published model with as many heads as our base",
    ),
    "published_bleu": Column("published ↑", places=1),
    "parameters_non_embedding": Column("parameters", "without embeddings"),
    "tokens": Column("training tokens"),
    "peak_learning_rate": Column("peak rate"),
    "flops_cumulative": Column("FLOPs with ancestors"),
    "loss_nats": Column("held-out loss (nats) ↓", LOSS),
    "perplexity": Column("perplexity ↓"),
    "gain_nats": Column("gain (nats) ↑"),
    "loss_minus_dense_nats": Column("minus 1x1 (nats) ↓"),
    "pair": Column("models and test text"),
    "plain_perplexity": Column("perplexity, plain ↓", places=2),
    "dense_perplexity": Column("perplexity, 1x1 ↓", places=2),
    "plain_learning_rate": Column("peak rate, plain"),
    "dense_learning_rate": Column("peak rate, 1x1"),
    "dense_minus_plain_nats": Column("1x1 minus plain (nats) ↓"),
    "plain_milliseconds": Column("plain (ms) ↓", places=1),
    "time_ratio": Column("time / plain ↓", places=2, null=1),
    "memory_ratio": Column("memory / plain ↓", places=2, null=1),
    "adds": Column("adds"),
    "averages": Column("averages", "k x p: every k-th earlier output, after every p-th block; none: Transformer"),
    "device": Column("processor"),
    "parameters_added": Column("added parameters"),
    "decoded_tokens_per_s": Column("decoding (tokens/s) ↑", places=1),
    "step_time_ratio": Column("step time ratio", "step time of a DenseFormer / step time of the Transformer"),
    "training_time_hours": Column("training time (h)"),
    "arm": Column("Transformer", "modern: RMSNorm, SwiGLU, rotary positions; classic: as GPT-2"),
    "effect_nats": Column("effect on the loss (nats) ↓"),
    "cost_nats": Column("added loss (nats) ↓", places=4),
    "perplexity_tokenformer": Column("Tokenformer, perplexity ↓"),
    "difference_nats": Column("difference (nats) ↓"),
    "other": Column("minus"),
    "validation_minus_ungrown_nats": Column("at the end (nats) ↓"),
    "first_step_minus_ungrown_nats": Column("before the first step (nats) ↓"),
    "mean_minus_ungrown_nats": Column("mean over training (nats) ↓"),
    "change_minus_net2net_nats": Column("zero keys minus Net2Net by padding (nats) ↓"),
    "flops_ratio": Column("ratio of costs ↓", places=2, null=1),
    "teraflops": Column("cost (TFLOP) ↓", places=0),
    "extrapolated": Column("extrapolated", "beyond the cost of our most expensive Transformer"),
    "tokens_read": Column("tokens", "training tokens, from scratch or in the stage"),
    "rate": Column("final learning rate"),
    "used": Column(
        "used",
        "a Transformer that ends at 0.1 of the peak rate, with the lowest loss for its cost; the CSV has more models",
    ),
    "formula_minus_printed_percent": Column("formula minus printed (%)", places=1),
    "nearer_count_minus_printed_percent": Column(
        "nearer value minus printed (%)",
        "in percent of the printed number, for the nearer of the counts with and without embedding",
        places=1,
    ),
    "formula of FLOPs": Column("formula of FLOPs", "2 N T + 4 L d T² for N parameters"),
    "printed": Column("printed", places=0),
    "without_embedding": Column("formula without embedding", places=0),
    "with_embedding": Column("formula with embedding", places=0),
    "test_minus_base_nats": Column("loss (nats) ↓"),
    "test_bleu_minus_base": Column("BLEU ↑", places=1),
    "test_sacrebleu": Column("sacreBLEU ↑", places=1),
    "test_exact_percent": Column("exact (%) ↑", "translations that equal the reference"),
    "test_perplexity": Column("perplexity ↓"),
    "loss_minus_base_nats": Column("development loss (nats) ↓"),
    "top1_percent": Column("top-1 (%) ↑", places=1),
    "first": Column("first model"),
    "second": Column("second model"),
    "top1_points": Column("first minus second (points) ↑"),
    "error_ratio": Column("ratio of errors, ours ↓", "below 1, the first model makes fewer errors", places=3, null=1),
    "published_ratio_B": Column("published, B/16 ↓", places=3),
    "published_ratio_L": Column("published, L/16 ↓", places=3),
    "accuracy": Column("accuracy (%) ↑", factor=100, places=1),
    "full": Column("Full (%)", factor=100, places=1),
    "tested": Column("ours (points)", factor=100, places=1),
    "decay_minus_h2o": Column("Decay minus H2O (points) ↑", factor=100, places=1),
    "full_minus_chance": Column("Full minus chance (points)", factor=100, places=1),
    "published_fraction": Column("published fraction (68 %) of it (points)", factor=100, places=1),
    "h2o_loses": Column("H2O loses (points)", "accuracy of Full minus accuracy of H2O", factor=100, places=1),
    "local_loses": Column("Local loses (points)", factor=100, places=1),
    "published_points": Column("published, OPT-2.7B (points)", places=1),
    "fraction_won_back": Column(
        "fraction won back (%) ↑", "Decay minus H2O, divided by the accuracy that H2O loses", factor=100, places=0
    ),
    "minus_full": Column("minus Full (points) ↑", factor=100, places=1),
    "minus_h2o": Column("minus H2O (points) ↑", factor=100, places=1),
    "chance": Column("chance (%)", factor=100, places=1),
    "acc_own": Column("own alpha (%) ↑", factor=100, places=1),
    "acc_common": Column("common alpha (%) ↑", factor=100, places=1),
    "task": Column("set"),
    "acc_decay": Column("Decay 0.2 (%) ↑", factor=100, places=1),
    "questions_of_set": Column("questions", places=0),
    "acc_h2o": Column("H2O (%) ↑", factor=100, places=1),
    "megabytes": Column("memory (MB) ↓", places=1),
    "gain": Column("own minus common (points) ↑", factor=100, places=1),
    "length": Column("prompt length (tokens)"),
    "configuration": Column("policy"),
    "budget": Column("cache budget (%)", "planned cache size, in percent of the tokens", 100),
    "h2o_size": Column("cache of H2O (%)", "measured size, mean over questions", 100, places=1),
    "decay_size": Column("cache of Decay (%)", factor=100, places=1),
    "realised_budget": Column("cache size (%)", "measured size, in percent of all keys and values", 100, places=1),
    "perplexity_increase_percent": Column("added perplexity (%) ↓", places=1),
    **{name: Column(name, places=1) for name in (f"{budget} % of the tokens ↓" for budget in (5, 10, 20, 40))},
    "increase_nats": Column("loss minus Full (nats) ↓", "loss with the pruned cache minus loss with the full cache"),

    "prompt_s": Column("prompt (s) ↓", places=1),
    "prompt_ratio": Column("prompt time / Full ↓", places=2, null=1),
    "speed_ratio": Column("decoding speed / Full ↑", places=2, null=1),
    "faster_after": Column(
        "break-even (tokens) ↓", "decoded tokens after which prompt and decoding together are faster than with Full",
        places=0,
    ),
}  # fmt: skip
UNITS = {"nats": "nats", "percent": "%", "points": "points", "s": "s", "megabytes": "MB"}


def column(name: str) -> Column:
    """Return the display settings of a column. The heading of an unlisted column has its unit in brackets."""
    if name in COLUMNS or "(" in name:
        return COLUMNS.get(name) or Column(name.replace("_", " "))
    words = re.sub(r"_per_s$", "/s", name).replace("_", " ").replace("flops", "FLOPs")
    quantity, _, unit = words.rpartition(" ")
    return Column(f"{quantity} ({UNITS[unit]})" if quantity and unit in UNITS else words)


def meanings(headings: Iterable[str]) -> list[str]:
    """Return a line per heading that needs an explanation, and the meaning of the arrows."""
    meaning_by_heading = {column.heading: column.meaning for column in COLUMNS.values()}
    headings = list(dict.fromkeys(headings))
    arrows = [words for arrow, words in ARROWS.items() if arrow in " ".join(headings)]
    lines = [
        f"{heading.rstrip('↓↑ ')}: {meaning_by_heading[heading]}."
        for heading in headings
        if meaning_by_heading.get(heading)
    ]
    if re.search("minus|loses", " ".join(headings)):
        lines.append("Differences are rounded after subtraction.")
    return [*lines, *([f"{'; '.join(arrows)}."] if arrows else [])]


def texts(name: str, values: Series, low: Series, high: Series, error: Series) -> list[str]:
    """Return a column as text: `x`, `x [low, high]` or `x ± error`.

    All rows have the same decimals. An end that rounds to zero has a sign if it shows that the interval excludes zero.
    A ratio has more decimals if an end of its interval would otherwise round to 1.
    """
    if not all(isinstance(value, int | float) or value is None for value in values):
        return ["" if value is None or value != value else str(value) for value in values]
    factor = column(name).factor
    values, low, high, error = (factor * numbers.astype(float) for numbers in (values, low, high, error))
    places = column(name).places
    if places is None:
        places = _mantissa(values) if name.startswith("flops") else _decimals(name, values, low, high, error)
    cells = []
    null = column(name).null
    for value, least, most, deviation in zip(values, low, high, error, strict=True):
        excluded, digits = least > null or most < null, places
        if null:
            digits = max(_places(end, null, places) for end in (least, most))
        text = _text(name, value, digits)
        least_text, most_text = (_signed(_text(name, end, digits), end, excluded) for end in (least, most))
        error_text = "" if math.isnan(deviation) else number(name, deviation, places)
        if least_text:
            text += f" [{least_text},\N{NO-BREAK SPACE}{most_text}]"
        elif error_text:
            text += f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{error_text}"
        cells.append(text.lstrip(" "))
    return cells


def verdict_words(verdict: Any, letters: dict[str, str] | None = None) -> str:
    """Return the words of verdicts without claims and reasons: "no verdict" for `no verdict (<claim>): few seeds`.

    With `letters`, each claim is named by a letter, which is added for a new claim: "no verdict (a)".
    """
    by_word = dict[str, list[str]]()
    for text in verdict.split("; ") if isinstance(verdict, str) else ():
        word, _, claim = text.partition(": ")[0].removesuffix(")").partition(" (")
        of_word = by_word.setdefault(word, [])
        if letters is not None and claim:
            of_word.append(letters.setdefault(claim, ascii_lowercase[len(letters)]))
    return ", ".join(word + f" ({', '.join(names)})" * bool(names) for word, names in by_word.items())


def _places(value: float, null: float, places: int) -> int:
    """Return `places`, or as many decimals as are needed to distinguish the number from `null`."""
    while abs(value - null) > 1e-9 and float(f"{value:.{places}f}") == null:
        places += 1
    return places


def _signed(text: str, value: float, excluded: bool) -> str:
    """Return the text of an end of an interval, with a sign if it rounds to zero: a minus sign if it is below zero, a
    plus sign if it is above zero and the interval excludes zero.
    """
    if not re.fullmatch(r"0\.?0*", text) or abs(value) < 1e-9:
        return text
    return MINUS + text if value < 0 else "+" * excluded + text


def _text(name: str, value: float, places: int) -> str:
    return "" if math.isnan(value) else number(name, value, places)


def _decimals(name: str, values: Series, low: Series, high: Series, error: Series) -> int:
    """Return the decimals of a column.

    Columns in nats have three decimals, and columns in points have one. Other columns with intervals show two
    significant digits of the median half width, but at most three of the median value. Columns without intervals have
    the fewest decimals, at most three, that show all numbers exactly. If three are not enough, they show two
    significant digits of the median standard error; without standard errors, three significant digits of the median
    value.
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
    """Return the decimals of the mantissas of a column: 0 or 1 if they show all numbers exactly, otherwise 2."""
    return next((n for n in range(2) if all(float(f"{x:.{n}e}") == x for x in values.dropna())), 2)


def _exponent(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0 and math.isfinite(value) else 0


def number(name: str, value: float, places: int) -> str:
    """Return a number with `places` decimals, without the sign of a rounded -0.

    `places` is ignored for learning rates (three significant digits), counts (`count`) and added parameters (all
    digits). FLOPs from 1e6 have an exponent, and `places` is the number of decimals of the mantissa.
    """
    if name in ("lr", "learning_rate"):
        return f"{value:.3g}"
    if name.endswith("_learning_rate"):
        return f"{value:.3g}".replace("e-0", "e-")
    if name == "parameters_added":
        return f"{value:,.0f}"
    if name.startswith(("parameters", "tokens")):
        return count(value)
    if name.startswith("flops") and abs(value) >= 1e6:
        return f"{value:.{places}e}".replace("e+", "e").replace("e0", "e")
    return f"{value:z,.{places}f}".replace("-", MINUS)


def count(value: float) -> str:
    """Return a count with three significant digits, or two if they are exact, and the suffix k, M or B."""
    exact = value == float(f"{value:.2g}")
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{abs(value):.3g}") >= size:
            return (f"{value / size:g}" if exact else f"{value / size:#.3g}".rstrip(".")) + unit
    return f"{value:.0f}"


def with_minus_signs(text: str) -> str:
    """Return a text with a minus sign in place of the hyphen of each negative number."""
    return re.sub(r"(?<![\w.])-(?=\d)", MINUS, text)


def with_interval(value: float, low: float, high: float, form: str) -> str:
    """Return `value [low, high]` in a number format, with minus signs; without an interval, return the value alone."""
    ends = "" if math.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return with_minus_signs(f"{value:{form}}{ends}")


def is_spread(name: Any) -> bool:
    """Return whether a column has the end of an interval or an error."""
    return str(name).endswith(("_low", "_high", "_se"))
