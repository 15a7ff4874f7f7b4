"""Rows of local suites, checked and brought into the form that their tasks read."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.language.suites import Form

Row = dict[str, Any]
Example = dict[str, Any]


def read_examples(paths: Sequence[Path], form: Form, prompt: str = "{query}") -> list[Example]:
    """Return the examples of all files, each with its `id`, in the order of a hash of their ids.

    So the first n are a sample of all, from all files, and the same on every machine. An id is the row's `id`, the
    `UID` and `pairID` of BLiMP, or file and line; it must be unique. Raises UserError with file and line for a row that
    is not what the format asks for.
    """
    examples: dict[str, Example] = {}
    make = _FORMS[form]
    for path in paths:
        for number, row in _rows(path):
            try:
                name = _name(row, path, number)
                if name in examples:
                    raise ValueError(f"id '{name}' stands here a second time")
                examples[name] = {"id": name, **make(row, prompt)}
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}; correct the row, or the suite's format ({form})") from None
    if not examples:
        raise UserError(f"{', '.join(map(str, paths))}: no rows; name other files")
    return sorted(examples.values(), key=lambda example: hashlib.blake2b(example["id"].encode()).digest())


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    yield number, row
    except (ValueError, OSError, EOFError) as error:  # of JSON, of UTF-8, of gzip
        raise UserError(f"{path}:{number or 1}: cannot be read ({error}); fetch the file again") from None


def _name(row: Row, path: Path, number: int) -> str:
    if "UID" in row and "pairID" in row:
        return f"{row['UID']}-{row['pairID']}"
    return str(row.get("id", f"{path.name.split('.')[0]}-{number:05d}"))


def _choices(row: Row, prompt: str) -> Example:
    """Return a query, endings, and the index of the right one."""
    try:
        query = prompt.format(**row)
    except (LookupError, AttributeError, ValueError) as error:
        raise ValueError(f"the prompt {prompt!r} asks for the field {error}, which the row lacks") from None
    return {"query": query.strip(), **_answers(row)}


def _contexts(row: Row, prompt: str) -> Example:
    """Return beginnings and the ending they share: a `sentence` with `_` for the choice, or a `continuation`."""
    del prompt
    answers = _answers(row)
    if "continuation" in row:
        return {"ending": _text(row, "continuation").strip(), **answers}
    before, mark, after = _text(row, "sentence").partition("_")
    if not mark or not after.strip():
        raise ValueError(f"sentence {row['sentence']!r} has no '_' with words behind it")
    return {"ending": after.strip(), **answers, "choices": [before + choice for choice in answers["choices"]]}


def _cloze(row: Row, prompt: str) -> Example:
    """Return a text whose last word is asked for."""
    del prompt
    before, _, last = _text(row, "text").strip().rpartition(" ")
    if not before:
        raise ValueError(f"text {row['text']!r} has no last word")
    return {"query": before, "ending": last}


def _pair(row: Row, prompt: str) -> Example:
    """Return two whole sentences, the good one first."""
    del prompt
    return {"choices": [_text(row, "sentence_good"), _text(row, "sentence_bad")], "gold": 0}


_FORMS: dict[str, Callable[[Row, str], Example]] = {
    "choices": _choices,
    "contexts": _contexts,
    "cloze": _cloze,
    "pairs": _pair,
}


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
