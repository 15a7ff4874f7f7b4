"""Names and looks of the parts of a run for readers: the `label` and the `look` of their specs.

A mixer, projection or policy says both itself. They are read from the source, through the union of the part's variants,
because code that draws may not import torch. So they hold for old rows too.
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
"""The file with the union of each part's variants, and its name."""


class Name(NamedTuple):
    """Name and look of a variant."""

    label: str
    """Its name for readers, with settings in braces, as in `Last-K, K = {outputs}`; empty for the plain variant. What
    stands in brackets is left out of rows without the setting."""
    look: tuple[str, str] | None
    """Colour and marker."""


@cache
def names(part: str) -> dict[str, Name]:
    """Return the variants of a mixer, projection or policy by kind, in the order of their union."""
    file, union = UNIONS[part]
    modules: dict[str, str] = {}
    listed = ""
    for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.startswith("formerlab."):
                modules |= {alias.name: module for alias in aliases}
            case ast.Assign([ast.Name(name)], value) if name == union:
                listed = ast.unparse(value)
    found = {}
    for name in re.findall(r"\b[A-Z]\w+", listed):
        if name in modules:
            said = _said(PACKAGE.joinpath(*modules[name].split(".")[1:]).with_suffix(".py"), name)
            found[said["kind"]] = Name(said.get("label", said["kind"].replace("_", " ")), said.get("look"))
    return found


def _said(path: Path, name: str) -> dict[str, Any]:
    """Return kind, label and look in the body of a class."""
    said: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for field in node.body if isinstance(node, ast.ClassDef) and node.name == name else ():
            match field:
                case ast.AnnAssign(ast.Name("kind" | "label" | "look" as key), value=ast.expr() as value):
                    said[key] = ast.literal_eval(value)
    return said


def called(part: str, record: Mapping[Hashable, Any], prefix: str) -> str:
    """Return the readers' name of the part of a run whose settings are the columns `<prefix>kind`, `<prefix>...`."""
    kind = record.get(f"{prefix}kind")
    if not isinstance(kind, str):
        return ""
    known = names(part).get(kind)
    label = known.label if known is not None else kind.replace("_", " ")  # rows of a part that is not in this checkout
    label = re.sub(r"\[(.*\{(\w+)\})\]", lambda part: part[1] * isinstance(record.get(prefix + part[2]), str), label)
    return re.sub(r"\{(\w+)\}", lambda field: _shown(record.get(prefix + field[1])), label)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def look_of(name: str) -> tuple[str, str] | None:
    """Return the look of a policy by its kind, or of a mixer or projection by its readers' name."""
    if name in names("policy"):
        return names("policy")[name].look
    for part in ("mixer", "projection"):
        for label, look in names(part).values():
            pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(label)).replace(r"\[", "(").replace(r"\]", ")?")
            if label and re.fullmatch(pattern, name):
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
"""Readers' names of the data sets of the scales of evidence, by the names in workflow/scales."""
RELEASED = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"}
"""Names of released models as their makers write them."""


def data_set(name: str, released: str | None, scale: str) -> str:
    """Return the readers' name of a data set; that of one for a released model ends in the model's name."""
    own = name.removesuffix(released).strip("-") or "text" if released else name
    return DATA_SETS.get(own, own) if scale in EVIDENCE else own
