"""Merge configuration mappings, store the file of every key, and parse the result into specs."""

import difflib
import functools
import itertools
import json
import math
import re
import string
from collections.abc import Container, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from formerlab.errors import UserError, near_misses, short_repr
from formerlab.spec import Spec

SomeSpec = TypeVar("SomeSpec", bound=Spec)
SPLITS = frozenset(("train", "valid", "test"))
"""Keys for the files of a split. In a merge, each of them removes the key `paths`, and `paths` removes all of them."""
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
"""Numbers that YAML reads as text, such as 1e-3 (no dot), 1.0e3 (no sign in the exponent) and "3" (quoted)."""


class Tree(dict[Any, Any]):
    """A mapping that stores its file and, for every key, the file that set it last."""

    def __init__(self, values: Mapping[Any, Any] | None = None, file: str = "") -> None:
        super().__init__()
        self.file = file
        self.files: dict[Any, str] = {}
        for key, value in (values or {}).items():
            self.set_value(key, Tree(value, file) if isinstance(value, dict) else value, file)

    def set_value(self, key: Any, value: Any, file: str) -> None:
        """Set a key to a value from a file."""
        self[key], self.files[key] = value, file

    def select(self, keys: Container[str]) -> "Tree":
        """Return a copy with only these keys."""
        selected = Tree(file=self.file)
        for key in (key for key in self if key in keys):
            selected.set_value(key, self[key], self.files[key])
        return selected

    def drop(self, *keys: str) -> "Tree":
        """Return a copy without these keys."""
        return self.select(self.keys() - set(keys))

    def subtree(self, *path: Any) -> "Tree":
        """Return the mapping at a path, or an empty mapping if it is missing."""
        subtree = value_at(self, path)
        return subtree if isinstance(subtree, Tree) else Tree(file=self.file_of(*path))

    def file_of(self, *path: Any) -> str:
        """Return the file that set a path or, if it is missing, the nearest existing key above it."""
        file, node = self.file, self
        for key in path:
            if not isinstance(node, Tree) or key not in node:
                break
            file, node = node.files[key], node[key]
        return file

    def files_of(self, *path: Any) -> str:
        """Return the files that set keys at or below a path, joined by commas."""
        node = value_at(self, path)
        inner = [node.files_of(key) for key in node] if isinstance(node, Tree) else []
        return ", ".join(dict.fromkeys(file for files in inner for file in files.split(", "))) or self.file_of(*path)


def value_at(tree: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path of a tree, or None if it is missing."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def merge(base: Tree, overrides: Tree, subject: str = "") -> Tree:
    """Merge `overrides` into `base` key by key; a mapping with another `kind` replaces the mapping of the base.

    The returned tree has subtrees of both inputs, so trees must never be changed in place. Raises UserError if one tree
    has a value and the other has keys at the same path.
    """
    if "kind" in overrides and base.get("kind", overrides["kind"]) != overrides["kind"]:
        return overrides
    merged = base.drop(*(SPLITS if "paths" in overrides else ["paths"] if SPLITS & overrides.keys() else ()))
    for key, value in overrides.items():
        base_value, path = merged.get(key), f"{subject}.{key}".lstrip(".")
        if isinstance(base_value, Tree) and isinstance(value, Tree):
            value = merge(base_value, value, path)
        elif (isinstance(base_value, Tree) or isinstance(value, Tree)) and None not in (base_value, value):
            conflict = f"{short_repr(value)} conflicts with {short_repr(base_value)} of {merged.files[key]}"
            raise UserError(f"{overrides.files[key]}: {path}: {conflict}; write a value in both, or keys in both")
        merged.set_value(key, value, overrides.files[key])
    return merged


def merge_all(trees: list[Tree], subject: str = "") -> Tree:
    """Merge trees; later trees override earlier trees."""
    return functools.reduce(lambda base, overrides: merge(base, overrides, subject), trees)


def nested(dotted: Mapping[Any, Any], file: str) -> Tree:
    """Convert dotted keys to nested mappings: {"a.b": 1} becomes {"a": {"b": 1}}."""
    tree = Tree(file=file)
    for key, value in dotted.items():
        *parents, leaf = str(key).split(".")
        node = Tree({leaf: nested(value, file) if isinstance(value, dict) else value}, file)
        for name in reversed(parents):
            node = Tree({name: node}, file)
        tree = merge(tree, node)
    return tree


def parse(spec_class: type[SomeSpec], tree: Tree, subject: str = "", remedy: str = "remove it") -> SomeSpec:
    """Parse a tree into a spec with strict types, so text is never converted to a number.

    `remedy` is the advice for an unknown key that resembles no valid key. Raises UserError with file, key and value.
    """
    try:
        return spec_class.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as caught:
        errors = caught.errors()
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{tree.file}: {error}; write plain keys and values") from None
    # Report type errors only if there are no other errors, and "too short" last, because pydantic reports a list with
    # items of a wrong type as empty.
    reported = min(errors, key=lambda error: (error["type"] == "too_short", error["type"].endswith("_type")))
    path = _path_in_tree(reported, tree)
    file = tree.files_of(*path) if reported["type"] == "value_error" else tree.file_of(*path)
    key = ".".join(str(name) for name in (subject, *path) if name != "")
    raise UserError(": ".join(text for text in (file, key, _reason(reported, spec_class, remedy)) if text))


def _path_in_tree(error: ErrorDetails, tree: Tree) -> tuple[int | str, ...]:
    """Return pydantic's error location without the tags of unions, which are not keys of the file."""
    path: list[int | str] = []
    node: Any = tree
    for key in error["loc"]:
        try:
            node = node[key]
        except (LookupError, TypeError):
            continue
        path.append(key)
    return (*path, error["loc"][-1]) if error["type"] == "missing" else tuple(path)


def _misread(error_type: str, value: Any) -> str | None:
    """Return advice if YAML reads a value as another type than its key needs, otherwise None."""
    if isinstance(value, str) and error_type in ("float_type", "int_type") and NUMBER.fullmatch(value):
        return f"{short_repr(value)} is text, not a number; write it without quotes, with dot and sign, as 1.0e-3"
    if isinstance(value, bool | int | float) and error_type in ("string_type", "literal_error"):
        return f'YAML reads it as {short_repr(value)}, which is not text; write it in quotes, as "no" or "0123"'
    return None


def _reason(error: ErrorDetails, spec: type[Spec], remedy: str) -> str:
    kind, value = error["type"], error["input"]
    if kind == "missing":
        return "missing key; add it"
    if kind == "union_tag_not_found":
        return "missing key kind; add it"
    if kind == "extra_forbidden":
        schema = spec.model_json_schema()
        schemas = (schema, *schema.get("$defs", {}).values())
        valid = {name for definition in schemas for name in definition.get("properties", ())}
        if (name := str(error["loc"][-1])) in valid:
            return f"not a valid key here (value {short_repr(value)}); set another kind, or move the key"
        near = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.7)
        return f"unknown key (value {short_repr(value)}); " + (f"did you mean {near[0]}?" if near else remedy)
    if kind == "union_tag_invalid":
        kinds = [tag.strip("'") for tag in error["ctx"]["expected_tags"].split(", ")]
        return f"unknown kind {error['ctx']['tag']!r}{near_misses(error['ctx']['tag'], kinds)}"
    if kind == "value_error":
        reason = error["msg"].removeprefix("Value error, ")
        return reason if ";" in reason or reason.count("=") < 2 else f"{reason}; change one of them"
    if (misread := _misread(kind, value)) is not None:
        return misread
    return error["msg"].replace("\n", " ") + ("" if isinstance(value, dict) else f" (got {short_repr(value)})")


def template_fields(template: str) -> list[str]:
    """Return the field names in braces of a run name. Raises ValueError for unmatched braces."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


class _NameFormatter(string.Formatter):
    """Formats numbers in names without a decimal point: 0.001 is 1e-3, 0.00015 is 15e-5."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, float) and math.isfinite(value) and not format_spec:
            sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            text = "-" * sign + "".join(map(str, digits))
            return text + "0" * exponent if exponent >= 0 else f"{text}e{exponent}"  # type: ignore[operator]
        return super().format_field(value, format_spec)


def fill_template(template: str, point: Mapping[str, Any]) -> str:
    """Return a template with its fields replaced by the values of a grid point."""
    return _NameFormatter().vformat(template, (), point)


def grid_points(file: str, template: str, grid: Any) -> list[dict[str, Any]]:
    """Return the points of a grid, each as a mapping from field to value.

    A grid is a mapping of lists (all combinations) or a list of mappings (these points). Raises UserError otherwise.
    """
    names = sorted(template_fields(template))
    points = grid
    if isinstance(grid, dict):
        lists = [value if isinstance(value, list) else [value] for value in grid.values()]
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]
    if not isinstance(points, list) or not points or any(not isinstance(p, dict) or sorted(p) != names for p in points):
        expected = ", ".join(f"{name}: [...]" for name in names)
        raise UserError(f"{file}: runs.{template}.grid: got {grid!r}; set values for exactly {{{expected}}}")
    return points


def fill(value: Any, point: Mapping[str, Any]) -> Any:
    """Substitute a grid point into a tree. The text "{x}" becomes the value of x; longer texts stay text.

    Raises KeyError for a field that is missing in the point, and ValueError for a brace without a field.
    """
    if isinstance(value, dict):
        filled = value.select(value) if isinstance(value, Tree) else {}  # keeps the files of the keys
        filled.update((key, fill(item, point)) for key, item in value.items())
        return filled
    if isinstance(value, list):
        return [fill(item, point) for item in value]
    if isinstance(value, str):
        if value[:1] == "{" and value[-1:] == "}" and value[1:-1] in point:
            return point[value[1:-1]]
        return fill_template(value, point) if "{" in value else value
    return value


def pattern_of(template: str) -> str:
    """Return a glob pattern that matches all names of a template."""
    return re.sub(r"\{.*?\}", "*", template)


def may_match(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a run or, for a template, can match one of its runs."""
    return fnmatchcase(name, pattern) or (not set("{}") & set(pattern) and fnmatchcase(pattern, pattern_of(name)))
