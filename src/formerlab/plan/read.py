"""Turn what YAML files say into specs; every mistake becomes one line with file, key, value and remedy."""

import difflib
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from formerlab.errors import UserError, near_misses, shown
from formerlab.plan.layers import Tree
from formerlab.spec import Spec

SomeSpec = TypeVar("SomeSpec", bound=Spec)
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
"""What YAML takes for text without a dot and the sign of its exponent, or in quotes."""


def parse(kind: type[SomeSpec], tree: Tree, subject: str = "", elsewhere: Mapping[str, str] | None = None) -> SomeSpec:
    """Return the spec that a tree describes; types are strict, so text is never read as a number.

    `elsewhere` says of keys that the spec does not have what may be meant.
    """
    try:
        text = json.dumps(tree, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{tree.file}: {error}; write plain keys and values") from None
    try:
        return kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        known = {name: ".".join(filter(None, (subject, way))) for name, way in fields_of(kind).items()}
        raise UserError(_explain(error.errors(), tree, subject, {**(elsewhere or {}), **known})) from None


def _explain(errors: list[ErrorDetails], tree: Tree, subject: str, known: dict[str, str]) -> str:
    """Return the line for one of the errors; where a value fits no type of several, what is wrong beside the type."""
    error = min(errors, key=lambda error: error["type"].endswith("_type"))
    path = _path_in_tree(error, tree)
    key = ".".join(str(part) for part in (subject, *path) if part != "")
    file = tree.files_of(*path) if error["type"] == "value_error" else tree.file_of(*path)
    reason = _reason(error, {name: way for name, way in known.items() if way != key})  # another kind may have the key
    return ": ".join(part for part in (file, key, reason) if part)


def _path_in_tree(error: ErrorDetails, tree: Tree) -> tuple[int | str, ...]:
    """Return pydantic's location without the tags of unions, which are no keys of the file."""
    path: list[int | str] = []
    node: Any = tree
    for part in error["loc"]:
        try:
            node = node[part]
        except (LookupError, TypeError):
            continue
        path.append(part)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else tuple(path)


def _reason(error: ErrorDetails, ways: dict[str, str]) -> str:
    kind, value = error["type"], error["input"]
    kind = "null" if value is None and kind.endswith("_type") else kind
    plain = {
        "null": "null is no value of this key; leave it out",
        "tuple_type": f"{shown(value)} is no list; write [{shown(value)}] for this one, [0, 1, 2] for several",
        "missing": "missing key; add it",
        "union_tag_not_found": f"missing key kind in {shown(value)}; add it",
        "too_short": f"{value!r} is empty; give at least one value, or leave the key out",
        "string_pattern_mismatch": f"{shown(value)} is no name; use 1 to 100 of a-z 0-9 _ -, a letter or digit first",
    }
    if kind in plain:
        return plain[kind]
    if kind == "extra_forbidden":
        name = str(error["loc"][-1])
        near = [ways[name]] if name in ways else difflib.get_close_matches(name, ways, n=1)
        return f"unknown key (value {shown(value)})" + (f"; did you mean {near[0]}?" if near else "; remove it")
    if kind == "union_tag_invalid":
        known = [tag.strip("'") for tag in error["ctx"]["expected_tags"].split(", ")]
        return f"unknown kind {error['ctx']['tag']!r}{near_misses(error['ctx']['tag'], known)}"
    if kind == "value_error":
        reason = error["msg"].removeprefix("Value error, ")
        return reason if ";" in reason or reason.count("=") < 2 else f"{reason}; change one of them"
    if isinstance(value, str) and kind in ("float_type", "int_type") and NUMBER.fullmatch(value):
        return f"{shown(value)} is text, not a number; write it without quotes, with dot and sign, as 1.0e-3"
    return error["msg"].replace("\n", " ") + ("" if isinstance(value, dict) else f" (got {shown(value)})")


@functools.cache
def fields_of(kind: type[Spec]) -> dict[str, str]:
    """Return the keys that a spec or any spec within it may have, each with the shortest way to it: `optimizer.lr`."""
    found: dict[str, str] = {}
    waiting: list[tuple[Any, str]] = [(kind, "")]
    seen: set[type[Spec]] = set()
    while waiting:
        part, way = waiting.pop(0)
        if not (isinstance(part, type) and issubclass(part, Spec)):
            way += {dict: "<name>.", tuple: "<n>."}.get(get_origin(part), "")
            waiting += [(inner, way) for inner in get_args(part)]
        elif part not in seen:  # breadth first, so that the shortest way is found first
            seen.add(part)
            for name, field in part.model_fields.items():
                found.setdefault(name, f"{way}{name}")
                waiting.append((field.annotation, f"{way}{name}."))
    return found
