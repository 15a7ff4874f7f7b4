"""The limits of a criterion in words, as tables print them beside a verdict."""

import re
from collections.abc import Sequence

from formerlab.report.claims.render import UNITS, item_name
from formerlab.report.claims.verdict import Item

_LIMITS = {
    ("lo", ">"): "an interval above {}",
    ("lo", ">="): "an interval from at least {}",
    ("hi", "<"): "an interval below {}",
    ("hi", "<="): "an interval up to at most {}",
    ("mean", ">="): "a mean of at least {}",
    ("", "<="): "a value of at most {}",
    ("", ">="): "a value of at least {}",
    ("", "=="): "a value of {}",
}
"""Words by the function and the comparison of a clause."""
_CLAUSE = re.compile(r"(?:(lo|hi|mean)\()?(\w+)\)? (<=|>=|<|>|==) (.+)")


def needed(items: Sequence[Item]) -> str:
    """Return what the numbers of a claim need to be for the claim to agree; limits that differ by item name the item.

    Clauses that no pattern matches are left out.
    """
    by_text: dict[str, list[str]] = {}
    for item in items:
        by_text.setdefault(_needed(item), []).append(item_name(item))
    texts = [text if len(by_text) == 1 else f"{', '.join(names)}: {text}" for text, names in by_text.items() if text]
    return "; ".join(texts)


def _needed(item: Item) -> str:
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
