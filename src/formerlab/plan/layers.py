"""Lay mappings over each other and remember where every key came from."""

import functools
import itertools
import math
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from formerlab.errors import UserError

Tree = dict[str, Any]

ALTERNATIVES = {frozenset(("paths",)), frozenset(("train", "valid", "test"))}
"""Keys that say the same in two ways: a mapping that names one of them replaces the others below it."""


@dataclass(frozen=True)
class Layer:
    """A mapping and the place it was read from."""

    place: str
    tree: Tree


def merge(base: Tree, over: Tree) -> Tree:
    """Return `base` with `over` laid on it, key by key.

    A mapping with another `kind` replaces the one below; so do, key by key, alternatives that exclude each other. The
    result shares what it can with both, so no tree is changed in place.
    """
    if _replaces(base, over):
        return over
    given = {key for key, value in over.items() if not isinstance(value, dict)}
    lost = {key for keys in ALTERNATIVES if keys & given for other in ALTERNATIVES - {keys} for key in other}
    merged = {key: value for key, value in base.items() if key not in lost}
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _replaces(base: Tree, over: Tree) -> bool:
    return "kind" in over and bool(base.get("kind", over["kind"]) != over["kind"])


def merge_layers(layers: list[Layer]) -> Tree:
    """Return all layers laid on each other, the last on top."""
    return laid(layers)[-1] if layers else {}


def laid(layers: list[Layer]) -> list[Tree]:
    """Return what each layer makes together with all below it."""
    return list(itertools.accumulate((layer.tree for layer in layers), merge))


def hidden(given: Tree, below: Tree, final: Tree) -> Tree:
    """Return what a layer says and the `final` tree does not, with the kinds of what it speaks of.

    `below` is what the layer makes together with those below it.
    """
    found: Tree = {}
    for key, value in given.items():
        mine, above = below.get(key), final.get(key)
        if not isinstance(value, dict) or not isinstance(mine, dict):
            found |= {} if key in final and above == value else {key: value}
            continue
        seen = above if isinstance(above, dict) and mine.get("kind", above.get("kind")) == above.get("kind") else {}
        if inner := hidden(value, mine, seen):
            found[key] = {"kind": kind} | inner if (kind := mine.get("kind", seen.get("kind"))) else inner
    return found


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
    return last_place_of(layers, [path])


def last_place_of(layers: list[Layer], paths: Iterable[tuple[Any, ...]]) -> str:
    """Return the last of the places of several paths: what was laid on top is what does not fit."""
    return layers[max(_height(layers, path) for path in paths)].place


def _height(layers: list[Layer], path: tuple[Any, ...]) -> int:
    for depth in range(len(path), 0, -1):
        for height in reversed(range(len(layers))):
            if at(layers[height].tree, path[:depth], _MISSING) is not _MISSING:
                return height
    return 0


_MISSING = object()


def at(tree: Any, path: Iterable[Any], default: Any = None) -> Any:
    """Return what stands in a tree at `path`."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return default
        tree = tree[key]
    return tree


def part(layers: list[Layer], *path: str) -> list[Layer]:
    """Return the part of each layer below a path, where it has one."""
    found = [Layer(layer.place, at(layer.tree, path)) for layer in layers]
    return [layer for layer in found if isinstance(layer.tree, dict)]


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


class _Names(string.Formatter):
    """Puts numbers into names, which have no point: 0.001 is 1e-3, 0.00015 is 15e-5."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, float) and math.isfinite(value) and not format_spec:
            sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            text = "-" * sign + "".join(map(str, digits))
            return text + "0" * exponent if exponent >= 0 else f"{text}e{exponent}"  # type: ignore[operator]
        return super().format_field(value, format_spec)


def named(template: str, point: Tree) -> str:
    """Return the name or text that a template gives at a grid point."""
    return _Names().vformat(template, (), point)


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
        return named(value, point) if "{" in value else value
    return value


def may_fit(name: str, pattern: str) -> bool:
    """Say whether a run, or one that a template stands for with some values, fits a pattern of names."""
    return name == pattern or (not set("{}") & set(pattern) and _overlap(_glob(name), _glob(pattern)))


def _glob(text: str) -> str:
    """Return a pattern of * and ? alone: a field of a template may be anything, a choice of characters one of any."""
    return re.sub(r"\[.+?\]", "?", re.sub(r"\{.*?\}", "*", text))


@functools.cache
def _overlap(one: str, other: str) -> bool:
    """Say whether some name fits both patterns, by walking through both at once."""
    waiting, seen = [(0, 0)], set()
    while waiting:
        i, j = place = waiting.pop()
        if place in seen or i > len(one) or j > len(other):
            continue
        seen.add(place)
        left, right = one[i : i + 1], other[j : j + 1]
        if not left and not right:
            return True
        if "*" in (left, right):  # it ends here, or takes what stands on the other side
            waiting += [(i + (left == "*"), j + (right == "*")), (i + 1, j), (i, j + 1)]
        elif left and right and (left == right or "?" in (left, right)):
            waiting.append((i + 1, j + 1))
    return False
