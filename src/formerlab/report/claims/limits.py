"""The limits of a criterion and our values in words, as tables print them beside a verdict."""

import math
import re
from collections.abc import Sequence

from pandas import Series

from formerlab.report.claims.quantity import Quantity
from formerlab.report.claims.render import UNITS, in_unit, item_name, unit_of
from formerlab.report.claims.verdict import Item
from formerlab.report.columns import texts, with_minus_signs

_LIMITS = {
    ("lo", ">"): "an interval above {}",
    ("lo", ">="): "an interval that begins at or above {}",
    ("hi", "<"): "an interval below {}",
    ("hi", "<="): "an interval that ends at or below {}",
    ("mean", ">="): "a mean of at least {}",
    ("", "<="): "a value of at most {}",
    ("", ">="): "a value of at least {}",
    ("", "=="): "a value of {}",
}
"""Words by the function and the comparison of a clause."""
_COLUMNS = {
    "nats": "difference_nats",
    "points": "tested",
    "ratio": "error_ratio",
    "times": "flops_ratio",
    "BLEU": "test_bleu_minus_base",
}
"""Table column of each unit. A note shows a number with as many digits as a cell of this column."""
_CLAUSE = re.compile(r"(?:(lo|hi|mean)\()?(\w+)\)? (<=|>=|<|>|==) (.+)")


def limits_in_words(items: Sequence[Item]) -> str:
    """Return the limits that the numbers must meet for the verdict `agrees`.

    If limits differ by item, each limit follows the name of its item. Clauses that no pattern matches are left out.
    """
    by_text: dict[str, list[str]] = {}
    for item in filter(_is_measured, items):
        by_text.setdefault(_limits_of_item(item), []).append(item_name(item))
    parts = (text if len(by_text) == 1 else f"{', '.join(names)}: {text}" for text, names in by_text.items() if text)
    return with_minus_signs("; ".join(parts))


def values_in_words(items: Sequence[Item]) -> str:
    """Return the first number of the criterion of a measured claim, by item, in the unit of its label."""
    measured_items = [item for item in items if _is_measured(item) and item.claim.kind == "measured"]
    numbers = [(item_name(item), _as_cell(item, next(iter(item.quantities)))) for item in measured_items]
    parts = (f"{name}: {number}" if name and len(measured_items) > 1 else number for name, number in numbers)
    return with_minus_signs("; ".join(parts))


def _as_cell(item: Item, name: str) -> str:
    """Return a quantity with the digits that a cell of a table has."""
    unit, value = unit_of(item, name), item.quantities[name]
    interval = value.interval(item.confidence) if isinstance(value, Quantity) else None
    if interval is None or not interval.known:
        return in_unit(item, name)
    if unit not in _COLUMNS:
        if " divided by " not in item.claim.labels.get(name, ""):
            return in_unit(item, name)
        return f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    numbers = (interval.mean, interval.low, interval.high, math.nan)
    (text,) = texts(_COLUMNS[unit], *(Series([math.exp(x) if unit == "ratio" else x]) for x in numbers))
    return text.replace("\N{NO-BREAK SPACE}", " ") + UNITS[unit].suffix


def _is_measured(item: Item) -> bool:
    return item.quantities.keys() >= item.claim.criterion.let.keys()


def _limits_of_item(item: Item) -> str:
    """Return the limits of one item: `label: words`, separated by commas."""
    labels = {name: item.claim.labels.get(name, name).partition(" | ")[::2] for name in item.quantities}
    first_unit = next((unit for _, unit in labels.values() if unit), "")
    limits = dict[str, list[str]]()
    for clause in item.claim.criterion.holds.split(" and "):
        match = _CLAUSE.fullmatch(clause)
        if match and match[2] in labels and (words := _LIMITS.get((match[1] or "", match[3]))):
            label, unit = labels[match[2]]
            limit = _in_unit(float(item.evaluate_expression(match[4])), unit or first_unit)
            limits.setdefault(re.sub(r" \(.*\)", "", label), []).append(words.format(limit))
    return ", ".join(f"{label}: {' and '.join(words)}" for label, words in limits.items())


def _in_unit(value: float, unit: str) -> str:
    if not unit or (value == 0 and unit != "ratio"):
        return f"{value:.3g}"
    form, convert, suffix = UNITS[unit]
    return f"{convert(value):{form}}{suffix}"
