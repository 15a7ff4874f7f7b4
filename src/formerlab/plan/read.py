"""Read YAML and turn it into specs; every mistake becomes one line with file, key, value and remedy."""

import difflib
import functools
import json
import re
from collections.abc import Collection
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from formerlab.errors import UserError, near_misses, shown
from formerlab.plan.layers import Layer, Tree, at, clash, hidden, laid, last_place_of, place_of
from formerlab.spec import Spec

SomeSpec = TypeVar("SomeSpec", bound=Spec)


def parse(kind: type[SomeSpec], layers: list[Layer], subject: str = "") -> SomeSpec:
    """Return the spec that the layers describe together; types are strict, so text is never read as a number.

    Values that another layer hides are checked as well: elsewhere they will be seen.
    """
    tree = _laid(layers, subject)
    try:
        spec = _validated(kind, tree, layers)
    except ValidationError as error:
        raise UserError(_explain(error.errors(), tree, layers, subject, fields_of(kind))) from None
    _check_hidden(kind, layers, subject)
    return spec


def check_values(
    kind: type[Spec], layers: list[Layer], subject: str, fields: Collection[str] = (), *, keys_too: bool = True
) -> None:
    """Refuse keys and values that no spec of a kind has, in layers that are not all of what will make one.

    What is missing may come with another layer, what does not fit together may change, and one of the `fields` of a
    template stands for any value.
    """
    tree = _laid(layers, subject)
    try:
        _validated(kind, tree, layers)
    except ValidationError as error:
        passed = _OF_THE_WHOLE if keys_too else {*_OF_THE_WHOLE, "extra_forbidden"}
        wrong = [e for e in error.errors() if e["type"] not in passed and not _is_filled(e["input"], fields)]
        if wrong:
            raise UserError(_explain(wrong, tree, layers, subject, fields_of(kind))) from None
    if len(layers) > 1:
        _check_hidden(kind, layers, subject)


def _check_hidden(kind: type[Spec], layers: list[Layer], subject: str) -> None:
    trees = laid(layers)
    for layer, below in zip(layers, trees, strict=True):
        if given := hidden(layer.tree, below, trees[-1]):
            check_values(kind, [Layer(layer.place, given)], subject, keys_too=False)


RENAMED = {
    "picture_tokens": "mask_dump_tokens",
    "picture_budgets": "mask_dump_budgets",
    "once": "one_shot",
    "once_budgets": "one_shot_budgets",
}
"""Keys of former versions, with the name that each has now."""
_OF_THE_WHOLE = frozenset(("missing", "value_error", "union_tag_not_found"))


def _is_filled(value: Any, fields: Collection[str]) -> bool:
    return isinstance(value, str) and any(f"{{{field}}}" in value for field in fields)


def _validated(kind: type[SomeSpec], tree: Tree, layers: list[Layer]) -> SomeSpec:
    try:
        text = json.dumps(tree, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{layers[-1].place}: {error}; write plain keys and values") from None
    return kind.model_validate_json(text, strict=True)


def _laid(layers: list[Layer], subject: str) -> Tree:
    """Return the layers laid on each other.

    Raises UserError for a value where another layer has keys: one of them would silently be lost.
    """
    trees: list[Tree] = [{}, *laid(layers)]
    for index, layer in enumerate(layers):
        if (path := clash(trees[index], layer.tree)) is not None:
            key = ".".join((subject, *path) if subject else path)
            given, below = shown(at(layer.tree, path)), shown(at(trees[index], path))
            raise UserError(
                f"{layer.place}: {key}: {given} does not go with {below} of {place_of(layers[:index], path)}; "
                "write a value in both, or keys in both"
            )
    return trees[-1]


def _telling(errors: list[ErrorDetails], tree: Tree) -> ErrorDetails:
    """Return the first error; where a value fits no type of several, what is wrong beside the type tells more."""
    first = _path_in_tree(errors[0], tree)
    same = [error for error in errors if _path_in_tree(error, tree) == first]
    return next((error for error in same if not error["type"].endswith("_type")), errors[0])


def _explain(errors: list[ErrorDetails], tree: Tree, layers: list[Layer], subject: str, known: dict[str, str]) -> str:
    error = _telling(errors, tree)
    path = _path_in_tree(error, tree)
    key = ".".join(str(part) for part in (subject, *path) if part != "")
    ways = {name: ".".join(filter(None, (subject, way))) for name, way in known.items()}
    reason = _reason(error, {name: way for name, way in ways.items() if way != key})  # another kind may have the key
    culprits = named_in(reason, path, tree) if error["type"] == "value_error" else [path]
    return ": ".join(part for part in (last_place_of(layers, culprits), key, reason) if part)


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


def named_in(reason: str, path: tuple[int | str, ...], tree: Tree) -> list[tuple[int | str, ...]]:
    """Return the keys of the files that a message about the mapping at `path` names, else `path`."""
    named = [(*path, *word.split(".")) for word in re.findall(r"[a-z_0-9.]+", reason)]
    return [place for place in named if at(tree, place) is not None] or [path]


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
        if name in RENAMED:
            return f"is {RENAMED[name]} now; rename it"
        near = [ways[name]] if name in ways else difflib.get_close_matches(name, ways, n=1)
        return f"unknown key (value {shown(value)})" + (f"; did you mean {near[0]}?" if near else "; remove it")
    if kind == "union_tag_invalid":
        known = [tag.strip("'") for tag in error["ctx"]["expected_tags"].split(", ")]
        return f"unknown kind {error['ctx']['tag']!r}{near_misses(error['ctx']['tag'], known)}"
    if kind == "value_error":
        reason = error["msg"].removeprefix("Value error, ")
        return reason if ";" in reason or reason.count("=") < 2 else f"{reason}; change one of them"
    if isinstance(value, str) and kind in ("float_type", "int_type") and _is_number(value):
        number = _as_yaml_number(value)
        return f"{shown(value)} is text, not a number; write {number} without quotes (YAML needs dot and sign)"
    return error["msg"].replace("\n", " ") + ("" if isinstance(value, dict) else f" (got {shown(value)})")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_yaml_number(text: str) -> str:
    mantissa, letter, exponent = text.lower().partition("e")
    if not letter:
        return text
    sign = exponent if exponent[:1] in "+-" else f"+{exponent}"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}"


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
