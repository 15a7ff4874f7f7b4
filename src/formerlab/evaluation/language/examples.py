"""Examples of suites from files: rows of JSON lines in four formats, checked, and how the harness asks each."""

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

Form = Literal["choices", "contexts", "cloze", "pairs"]
Row = dict[str, Any]
Example = dict[str, Any]


def means(*metrics: str) -> list[dict[str, Any]]:
    """Return metrics of the harness whose values are means over examples."""
    return [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics]


def _gold(example: Example) -> int:
    return int(example["gold"])


LAST_WORD = {"output_type": "loglikelihood", "doc_to_choice": None, "doc_to_text": "query", "target_delimiter": ""}
PERPLEXITY = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
FORMATS: dict[Form, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "choices": (means("acc", "acc_norm", "acc_mutual_info"), {"doc_to_text": "query", "doc_to_target": _gold}),
    # as winogrande: the text is the index of the right context
    "contexts": (means("acc"), {"doc_to_text": _gold, "doc_to_target": "ending"}),
    # as lambada_openai
    "cloze": ([*means("acc"), PERPLEXITY], LAST_WORD),
    # as blimp, but sentences begin a document, with no space in front
    "pairs": (means("acc"), {"doc_to_text": "", "doc_to_target": _gold, "target_delimiter": ""}),
}
"""Metrics and form of questions by format, as in the harness's own tasks."""


def read_examples(paths: Sequence[Path], form: Form, prompt: str = "{query}") -> list[Example]:
    """Return the examples of all files, each with its `id`, in the order of a hash of their ids.

    So the first n are a sample of all, from all files, and the same on every machine. An id is the row's `id`, the
    `UID` and `pairID` of BLiMP, or file and line; it must be unique. A row that does not fit is named with its line.
    """
    examples: dict[str, Example] = {}
    for path in paths:
        for number, row in json_lines(path):
            try:
                own = row.get("id", f"{path.name.split('.')[0]}-{number:05d}")
                name = _fill("{UID}-{pairID}", row) if {"UID", "pairID"} <= set(row) else _fill("{id}", {"id": own})
                if name in examples:
                    raise ValueError(f"id '{name}' stands here a second time")
                example = {"id": name, **make_example(form, row, prompt)}
                if not is_utf8(json.dumps(example, ensure_ascii=False)):
                    raise ValueError("half a character (\\ud800 to \\udfff alone) is no text")
                examples[name] = example
            except ValueError as error:
                remedy = f"correct the row, or the suite's format ({form})"
                raise UserError(f"{path}, line {number}: {error}; {remedy}") from None
    if not examples:
        raise UserError(f"{', '.join(map(str, paths))}: no rows; name other files")
    return sorted(examples.values(), key=lambda example: hashlib.blake2b(example["id"].encode()).digest())


def check_prompt(prompt: str) -> str:
    """Return a prompt that names fields of a row in single braces. Raises ValueError for any other."""
    if doubled := re.search(r"\{\{\s*(\w+).*?\}\}", prompt):
        raise ValueError(f"{doubled[0]} is written in double braces, which mean braces; write {{{doubled[1]}}}")
    if not [key for _, key, _, _ in string.Formatter().parse(prompt) if key]:
        raise ValueError(f"{prompt!r} names no field, so that every question would be the same; write {{query}}")
    return prompt


def _fill(prompt: str, row: Row) -> str:
    """Fill a prompt; refuse a null, a list or NaN, which Python would write as a word."""
    for _, key, _, _ in string.Formatter().parse(prompt):
        if key is not None:
            if key not in row:
                raise ValueError(f"the prompt asks for the field '{key}', which the row lacks")
            value = row[key]
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (isinstance(value, str) or number):
                raise ValueError(f"field '{key}' holds {value!r}, neither a text nor a number")
    return prompt.format(**row)


def make_example(form: Form, row: Row, prompt: str) -> Example:
    """Return the question of a row; of `contexts` the choices are beginnings of a `sentence` or of a `continuation`."""
    if form == "pairs":
        return {"choices": [_text(row, "sentence_good"), _text(row, "sentence_bad")], "gold": 0}
    if form == "cloze":
        before, _, last = _text(row, "text").strip().rpartition(" ")
        if not before:
            raise ValueError(f"text {row['text']!r} has no last word")
        return {"query": before, "ending": last}
    answers = _answers(row)
    if form == "choices":
        return {"query": _fill(prompt, row).strip(), **answers}
    if "continuation" in row:
        return {"ending": _text(row, "continuation").strip(), **answers}
    before, _, after = _text(row, "sentence").partition("_")
    if not after.strip():
        raise ValueError(f"sentence {row['sentence']!r} has no '_' with words behind it")
    return {"ending": after.strip(), **answers, "choices": [before + choice for choice in answers["choices"]]}


def _answers(row: Row) -> Example:
    choices, gold = row.get("choices"), row.get("gold")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise ValueError(f"choices {choices!r} are not two or more texts")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(choices):
        raise ValueError(f"gold {gold!r} is not the index of one of {len(choices)} choices")
    return {"choices": choices, "gold": gold}


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field '{key}' holds {value!r}, not a text")
    return value
