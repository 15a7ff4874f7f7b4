"""Read YAML and turn it into specs; every mistake becomes one line with file, key, value and remedy."""

import difflib
import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from formerlab.errors import UserError
from formerlab.plan.layers import Layer, Tree, merge_layers, place_of
from formerlab.spec import Spec

SomeSpec = TypeVar("SomeSpec", bound=Spec)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe loading that refuses a key given twice, where plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} given twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Tree:
    """Read a mapping from a YAML file."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except FileNotFoundError:
        near = near_misses(path.stem, [p.stem for p in path.parent.glob("*.yaml")])
        raise UserError(f"{path}: no such file{near}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys and values, got {tree!r}")
    return tree


def parse(kind: type[SomeSpec], layers: list[Layer], subject: str = "") -> SomeSpec:
    """Return the spec that the layers describe together; types are strict, so text is never read as a number."""
    tree = merge_layers(layers)
    try:
        return kind.model_validate_json(json.dumps(tree), strict=True)
    except TypeError as error:
        raise UserError(f"{layers[-1].place}: {error}") from None
    except ValidationError as error:
        raise UserError(_explain(error.errors()[0], tree, layers, subject)) from None


def near_misses(word: str, known: list[str]) -> str:
    """Return what a misspelt word may mean, ready to stand at the end of a message."""
    close = difflib.get_close_matches(word, sorted(set(known)), n=3)
    return (
        f"; did you mean {' or '.join(close)}?" if close else f"; known are {', '.join(sorted(set(known))) or 'none'}"
    )


def _explain(error: ErrorDetails, tree: Tree, layers: list[Layer], subject: str) -> str:
    path = _path_in_tree(error["loc"], tree)
    place = place_of(layers, path) if path else layers[-1].place
    key = ".".join(str(part) for part in path)
    return ": ".join(part for part in (place, subject, key, _reason(error)) if part)


def _path_in_tree(location: tuple[int | str, ...], tree: Tree) -> tuple[int | str, ...]:
    """Return pydantic's location without the tags of unions, which are no keys of the file."""
    path: list[int | str] = []
    node: Any = tree
    for index, part in enumerate(location):
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        elif index < len(location) - 1:
            continue
        path.append(part)
    return tuple(path)


def _reason(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "extra_forbidden":
        word = str(error["loc"][-1])
        close = difflib.get_close_matches(word, _all_fields(), n=3)
        return f"unknown key (value {value!r})" + (f"; did you mean {' or '.join(close)}?" if close else "; remove it")
    if error["type"] == "missing":
        return "missing key; add it"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if isinstance(value, str) and error["type"] in ("float_type", "int_type") and _is_number(value):
        return f"{value!r} is text, not a number; write {_as_yaml_number(value)} without quotes (YAML needs dot and sign)"
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


def _all_fields() -> list[str]:
    names: set[str] = set()
    waiting: list[type[Spec]] = [Spec]
    while waiting:
        kind = waiting.pop()
        names.update(kind.model_fields)
        waiting.extend(kind.__subclasses__())
    return sorted(names)
