"""Read YAML and turn it into specs; every mistake becomes one line with file, key, value and remedy."""

import difflib
import json
import re
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from formerlab.errors import UserError
from formerlab.plan.layers import Layer, Tree, at, clash, merge_layers, place_of
from formerlab.spec import Spec

SomeSpec = TypeVar("SomeSpec", bound=Spec)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, where plain YAML silently keeps the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(root: Path, place: str) -> Tree:
    """Read a mapping from the YAML file at `place` below `root`."""
    path = root / place
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except FileNotFoundError:
        near = near_misses(path.name, [file.name for file in path.parent.glob("*.yaml")])
        raise UserError(f"{place}: no such file{near}") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{place}: not valid YAML: {error.problem}{line}; correct it") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{place}: cannot be read: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{place}: got {tree!r}; write keys and values")
    return tree


def parse(kind: type[SomeSpec], layers: list[Layer], subject: str = "") -> SomeSpec:
    """Return the spec that the layers describe together; types are strict, so text is never read as a number."""
    _refuse_clashes(layers, subject)
    tree = merge_layers(layers)
    try:
        return kind.model_validate_json(json.dumps(tree, default=str), strict=True)
    except TypeError as error:
        raise UserError(f"{layers[-1].place}: {error}") from None
    except ValidationError as error:
        raise UserError(_explain(_telling(error.errors(), tree), tree, layers, subject, _fields(kind))) from None


def _refuse_clashes(layers: list[Layer], subject: str) -> None:
    """Refuse a value where another layer has keys: laid over each other, one of them would silently be lost."""
    for index, layer in enumerate(layers):
        below = layers[:index]
        tree = merge_layers(below)
        if (path := clash(tree, layer.tree)) is not None:
            key = ".".join((subject, *path) if subject else path)
            raise UserError(
                f"{layer.place}: {key}: {at(layer.tree, path)!r} does not go with {at(tree, path)!r} of "
                f"{place_of(below, path)}; write a value in both, or keys in both"
            )


def near_misses(word: str, known: list[str]) -> str:
    """Return what a misspelt word may mean, ready to stand at the end of a message."""
    close = difflib.get_close_matches(word, sorted(set(known)), n=3)
    return (
        f"; did you mean {' or '.join(close)}?" if close else f"; known are {', '.join(sorted(set(known))) or 'none'}"
    )


def _telling(errors: list[ErrorDetails], tree: Tree) -> ErrorDetails:
    """Return the first error; where a value fits no type of several, what is wrong beside the type tells more."""
    first = _path_in_tree(errors[0], tree)
    same = [error for error in errors if _path_in_tree(error, tree) == first]
    return next((error for error in same if not error["type"].endswith("_type")), errors[0])


def _explain(error: ErrorDetails, tree: Tree, layers: list[Layer], subject: str, known: list[str]) -> str:
    path = _path_in_tree(error, tree)
    reason = _reason(error, known)
    culprit = _named_in(reason, path, tree) if error["type"] == "value_error" else path
    key = ".".join(str(part) for part in (subject, *path) if part != "")
    return ": ".join(part for part in (place_of(layers, culprit), key, reason) if part)


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


def _named_in(reason: str, path: tuple[int | str, ...], tree: Tree) -> tuple[int | str, ...]:
    """Return the first key of the file that a message about the mapping at `path` names, else `path`."""
    for word in re.findall(r"[a-z_0-9.]+", reason):
        named = (*path, *word.split("."))
        if at(tree, named) is not None:
            return named
    return path


def _reason(error: ErrorDetails, fields: list[str]) -> str:
    kind, value = error["type"], error["input"]
    plain = {
        "missing": "missing key; add it",
        "union_tag_not_found": f"missing key kind in {value!r}; add it",
        "too_short": f"{value!r} is empty; give at least one value, or leave the key out",
        "string_pattern_mismatch": f"{value!r} is no name; use a-z, 0-9, _ and - only, a letter or digit first",
    }
    if kind in plain:
        return plain[kind]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), fields, n=1)
        return f"unknown key (value {value!r})" + (f"; did you mean {near[0]}?" if near else "; remove it")
    if kind == "union_tag_invalid":
        known = [tag.strip("'") for tag in error["ctx"]["expected_tags"].split(", ")]
        return f"unknown kind {error['ctx']['tag']!r}{near_misses(error['ctx']['tag'], known)}"
    if kind == "value_error":
        reason = error["msg"].removeprefix("Value error, ")
        return reason if ";" in reason or reason.count("=") < 2 else f"{reason}; change one of them"
    if isinstance(value, str) and kind in ("float_type", "int_type") and _is_number(value):
        return (
            f"{value!r} is text, not a number; write {_as_yaml_number(value)} without quotes (YAML needs dot and sign)"
        )
    shown = "" if isinstance(value, dict) else f" (got {value!r})"
    return error["msg"].replace("\n", " ") + shown


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


def _fields(kind: type[Spec]) -> list[str]:
    """Return the keys that a spec or any spec within it may have."""
    found: set[type[Spec]] = set()
    waiting: list[Any] = [kind]
    while waiting:
        part = waiting.pop()
        if isinstance(part, type) and issubclass(part, Spec):
            if part not in found:
                found.add(part)
                waiting += [field.annotation for field in part.model_fields.values()]
        else:
            waiting += get_args(part)
    return sorted({name for part in found for name in part.model_fields})
