"""Read and validate examples of local suites from JSON lines in four formats, and convert them for the harness."""

import hashlib
import json
import math
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from formerlab.data.text.readers import json_lines
from formerlab.errors import UserError
from formerlab.files import is_utf8

Format = Literal["choices", "contexts", "cloze", "pairs"]
Row = dict[str, Any]
Example = dict[str, Any]


def _mean_metrics(*metrics: str) -> list[dict[str, Any]]:
    return [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics]


LAST_WORD = {"output_type": "loglikelihood", "doc_to_choice": None, "doc_to_text": "query", "target_delimiter": ""}
PERPLEXITY = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
FORMATS: dict[Format, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "choices": (_mean_metrics("acc", "acc_norm", "acc_mutual_info"), {"doc_to_text": "query", "doc_to_target": "gold"}),
    # as in winogrande, `doc_to_text` returns the index of the correct context
    "contexts": (_mean_metrics("acc"), {"doc_to_text": "gold", "doc_to_target": "ending"}),
    # as in lambada_openai
    "cloze": ([*_mean_metrics("acc"), PERPLEXITY], LAST_WORD),
    # as in blimp, but without a space before the sentence
    "pairs": (_mean_metrics("acc"), {"doc_to_text": "", "doc_to_target": "gold", "target_delimiter": ""}),
}
"""Metrics and task fields by format, as in the harness's tasks."""


def read_examples(paths: Sequence[Path], form: Format, prompt: str = "{query}") -> list[Example]:
    """Return the examples of all files, sorted by a hash of their ids, so that the first n are a random sample.

    The id of an example is `<UID>-<pairID>` if the row has both fields (BLiMP), otherwise `id`, otherwise file and
    line. Raises UserError for an invalid row, and if two examples have the same id.
    """
    examples: dict[str, Example] = {}
    for path in paths:
        for number, row in json_lines(path):
            try:
                identifier = row.get("id", f"{path.name.split('.')[0]}-{number:05d}")
                blimp = {"UID", "pairID"} <= set(row)
                name = _fill("{UID}-{pairID}", row) if blimp else _fill("{id}", {"id": identifier})
                if name in examples:
                    raise ValueError(f"id '{name}' occurs a second time")
                example = {"id": name, **make_example(form, row, prompt)}
                if not is_utf8(json.dumps(example, ensure_ascii=False)):
                    raise ValueError("the row has an unpaired surrogate (\\ud800 to \\udfff), which is not valid text")
                examples[name] = example
            except ValueError as error:
                remedy = f"correct the row, or the suite's format ({form})"
                raise UserError(f"{path}, line {number}: {error}; {remedy}") from None
    if not examples:
        raise UserError(f"{', '.join(map(str, paths))}: no rows; choose other files")
    return sorted(examples.values(), key=lambda example: hashlib.blake2b(example["id"].encode()).digest())


def check_prompt(prompt: str) -> None:
    """Raise ValueError unless the prompt contains a field in single braces."""
    if doubled := re.search(r"\{\{\s*(\w+).*?\}\}", prompt):
        raise ValueError(f"{doubled[0]}: double braces mean literal braces; write {{{doubled[1]}}}")
    if not [key for _, key, _, _ in string.Formatter().parse(prompt) if key]:
        raise ValueError(f"{prompt!r} contains no field, so all questions would be equal; write {{query}}")


def _fill(prompt: str, row: Row) -> str:
    """Fill the fields of a prompt. Raises ValueError unless all fields are strings or finite numbers."""
    for _, key, _, _ in string.Formatter().parse(prompt):
        if key is not None:
            if key not in row:
                raise ValueError(f"the row has no field '{key}', which the prompt contains")
            value = row[key]
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (isinstance(value, str) or number):
                raise ValueError(f"field '{key}' is {value!r}, but must be a string or a finite number")
    return prompt.format(**row)


def make_example(form: Format, row: Row, prompt: str) -> Example:
    """Convert a row to an example of its format (docs/data.md). Raises ValueError for an invalid row."""
    if form == "pairs":
        return {"choices": [_text(row, "sentence_good"), _text(row, "sentence_bad")], "gold": 0}
    if form == "cloze":
        context, _, last_word = _text(row, "text").strip().rpartition(" ")
        if not context:
            raise ValueError(f"text {row['text']!r} has only one word; the last word needs a context")
        return {"query": context, "ending": last_word}
    choices, gold = _choices_and_gold(row)
    if form == "choices":
        return {"query": _fill(prompt, row).strip(), "choices": choices, "gold": gold}
    if "continuation" in row:
        return {"ending": _text(row, "continuation").strip(), "choices": choices, "gold": gold}
    context, _, ending = _text(row, "sentence").partition("_")
    if not ending.strip():
        raise ValueError(f"sentence {row['sentence']!r} has no '_' followed by words")
    return {"ending": ending.strip(), "choices": [context + choice for choice in choices], "gold": gold}


def _choices_and_gold(row: Row) -> tuple[list[str], int]:
    choices, gold = row.get("choices"), row.get("gold")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise ValueError(f"choices {choices!r} must be a list of two or more strings")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(choices):
        raise ValueError(f"gold {gold!r} is not the index of one of {len(choices)} choices")
    return choices, gold


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field '{key}' is {value!r}, but must be a non-empty string")
    return value
