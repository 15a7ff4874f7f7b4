"""What readers call the parts of a run, and how figures draw them: the `label` and the `look` of their specs.

A mixer, projection or policy says both itself. They are read from the source, through the union that makes the part
known, because nothing that draws may import torch. So they hold for old rows too.
"""

import ast
import re
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
UNIONS = {
    "mixer": ("layers/depth/union.py", "DepthMixer"),
    "projection": ("layers/projection.py", "Projection"),
    "policy": ("cache/__init__.py", "CachePolicy"),
}
"""Where the variants of each part are listed, and the name of the list."""


class Name(NamedTuple):
    """What the spec of a variant says of itself."""

    label: str
    """What readers call it; settings stand in braces, as in `Last-K, K = {outputs}`; empty where it needs none."""
    look: tuple[str, str] | None
    """Colour and marker."""


@cache
def names(part: str) -> dict[str, Name]:
    """Return the variants of a mixer, projection or policy by kind, in the order of their union."""
    file, union = UNIONS[part]
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    modules = {
        alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    (listed,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and _target(node) == union)
    classes = [word for word in re.findall(r"\w+", ast.unparse(listed)) if word[0].isupper()]
    found = {}
    for name in classes:
        if (module := modules.get(name) or "").startswith("formerlab."):
            constants = _class_constants(PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py"), name)
            found[constants["kind"]] = Name(
                constants.get("label", constants["kind"].replace("_", " ")), constants.get("look")
            )
    return found


def _class_constants(path: Path, name: str) -> dict[str, Any]:
    """Return the literal values in the body of a class."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and field.value is not None]
            return {_target(field): ast.literal_eval(field.value) for field in fields if _target(field) in _SAID}  # type: ignore[arg-type]
    raise LookupError(f"{path}: no class {name}")


_SAID = ("kind", "label", "look")


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def called(part: str, record: Mapping[Hashable, Any], prefix: str) -> str:
    """Return what readers call the part of a run whose settings are the columns `<prefix>kind`, `<prefix>...`."""
    kind = record.get(f"{prefix}kind")
    if not isinstance(kind, str):
        return ""
    known = names(part).get(kind)
    label = known.label if known is not None else kind.replace("_", " ")  # rows of a part that is not in this checkout
    return re.sub(r"\{(\w+)\}", lambda field: _shown(record.get(prefix + field[1])), label)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def look_of(name: str) -> tuple[str, str] | None:
    """Return the look of a policy by its kind, or of a mixer or projection by what readers call it."""
    if name in names("policy"):
        return names("policy")[name].look
    for part in ("mixer", "projection"):
        for label, look in names(part).values():
            if label and re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(label)), name):
                return look
    return None


EVIDENCE = ("overnight", "pilot", "pretrained")
DATA_SETS = {
    "text": "books",
    "second": "docstrings",
    "pairs": "Multi30k",
    "images": "CIFAR-10",
    "wikitext": "WikiText-2",
}
"""What readers call the data sets of the scales of evidence, by the names in workflow/scales."""
RELEASED = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"}
"""What the makers of released models call them."""


def data_set(name: str, released: str | None, scale: str) -> str:
    """Return what a reader calls a data set; the name of one for a released model ends in that of the model."""
    own = name.removesuffix(released).strip("-") or "text" if released else name
    return DATA_SETS.get(own, own) if scale in EVIDENCE else own
