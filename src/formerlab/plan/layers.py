"""Lay mappings over each other and remember where every key came from."""

import itertools
import string
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from formerlab.errors import UserError

Tree = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """A mapping and the place it was read from."""

    place: str
    tree: Tree


def merge(base: Tree, over: Tree) -> Tree:
    """Return `base` with `over` laid on it, key by key; a mapping with another `kind` replaces the one below."""
    if _replaces(base, over):
        return deepcopy(over)
    merged = deepcopy(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else deepcopy(value)
    return merged


def _replaces(base: Tree, over: Tree) -> bool:
    return "kind" in over and bool(base.get("kind", over["kind"]) != over["kind"])


def merge_layers(layers: list[Layer]) -> Tree:
    """Return all layers laid on each other, the last on top."""
    tree: Tree = {}
    for layer in layers:
        tree = merge(tree, layer.tree)
    return tree


def clash(below: Tree, over: Tree) -> tuple[str, ...] | None:
    """Return where a value would replace a mapping, or a mapping a value; None may stand for either."""
    if _replaces(below, over):
        return None
    for key in [key for key in over if None not in (below.get(key), over[key])]:
        mappings = [isinstance(tree[key], dict) for tree in (below, over)]
        if mappings == [True, True] and (inner := clash(below[key], over[key])) is not None:
            return (key, *inner)
        if mappings in ([True, False], [False, True]):
            return (key,)
    return None


def place_of(layers: list[Layer], path: tuple[Any, ...]) -> str:
    """Return the place that last said something at `path` or above it; the first of all where none did."""
    for depth in range(len(path), 0, -1):
        for layer in reversed(layers):
            if at(layer.tree, path[:depth], _MISSING) is not _MISSING:
                return layer.place
    return layers[0].place


_MISSING = object()


def at(tree: Any, path: Iterable[Any], default: Any = None) -> Any:
    """Return what stands in a tree at `path`."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return default
        tree = tree[key]
    return tree


def nested(dotted: Tree) -> Tree:
    """Return {"a.b": 1} as {"a": {"b": 1}}."""
    tree: Tree = {}
    for key, value in dotted.items():
        node: Tree = {}
        leaf = node
        *above, last = str(key).split(".")
        for name in above:
            leaf = leaf.setdefault(name, {})
        leaf[last] = nested(value) if isinstance(value, dict) else value
        tree = merge(tree, node)
    return tree


def fields(template: str) -> list[str]:
    """Return the names in braces of a run name."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def grid_points(place: str, template: str, grid: Any) -> list[Tree]:
    """Return the value of every field, for each point of a grid.

    A grid is a mapping of lists (all combinations) or a list of mappings (exactly these).
    """
    names = sorted(fields(template))
    points = grid
    if isinstance(grid, dict):
        lists = [value if isinstance(value, list) else [value] for value in grid.values()]
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]
    if not isinstance(points, list) or not points or any(not isinstance(p, dict) or sorted(p) != names for p in points):
        wanted = ", ".join(f"{name}: [...]" for name in names)
        raise UserError(f"{place}: runs.{template}.grid: got {grid!r}; give values for exactly {{{wanted}}}")
    return points


def fill(value: Any, point: Tree) -> Any:
    """Put a grid point into a tree: "{x}" alone becomes the value itself, inside a text its text.

    Raises KeyError for a field that the point does not have, ValueError for a brace that opens no field.
    """
    if isinstance(value, dict):
        return {key: fill(item, point) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, point) for item in value]
    if isinstance(value, str):
        if value[:1] == "{" and value[-1:] == "}" and value[1:-1] in point:
            return point[value[1:-1]]
        return value.format(**point) if "{" in value else value
    return value
