"""Labels, colours and markers of the variants of a run, read from names.yaml, and labels of data sets."""

import re
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from formerlab.yaml_files import read_scale

if TYPE_CHECKING:  # the plan reads the labels, and it loads no pandas
    from pandas import Series

NAMES_FILE = Path(__file__).with_suffix(".yaml")


class VariantStyle(NamedTuple):
    """Label and plot style of a variant."""

    label: str
    color: str | None = None
    marker: str | None = None


@cache
def variant_styles() -> dict[str, dict[str, VariantStyle]]:
    """Return {"mixer" | "projection" | "policy": {kind: style}}, in the order of names.yaml."""
    table = yaml.safe_load(NAMES_FILE.read_text(encoding="utf-8"))
    return {axis: {kind: VariantStyle(**name) for kind, name in kinds.items()} for axis, kinds in table.items()}


def kind_label(axis: str, record: Mapping[Hashable, Any], prefix: str) -> str:
    """Return the label of a run's mixer, projection or policy from its settings in the columns `<prefix>kind`, ..."""
    kind = record.get(f"{prefix}kind")
    if not isinstance(kind, str):
        return ""
    label = variant_styles()[axis].get(kind, VariantStyle(kind.replace("_", " "))).label
    label = re.sub(r"\[(.*\{(\w+)\})\]", lambda match: match[1] * isinstance(record.get(prefix + match[2]), str), label)
    return re.sub(r"\{(\w+)\}", lambda match: _format(record.get(prefix + match[1])), label)


def _format(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def color_and_marker(name: str) -> tuple[str, str] | None:
    """Return the colour and marker of a policy (by its kind) or of a mixer or projection (by its label), or None."""
    axes = variant_styles()
    labelled = [style for axis in ("mixer", "projection") for style in axes[axis].values() if style.label]
    style = axes["policy"].get(name) or next((style for style in labelled if _is_label(name, style.label)), None)
    return (style.color, style.marker) if style and style.color and style.marker else None


def _is_label(name: str, template: str) -> bool:
    """Return whether `name` is the label `template` of names.yaml with its settings filled in."""
    pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)).replace(r"\[", "(").replace(r"\]", ")?")
    return re.fullmatch(pattern, name) is not None


RELEASED_NAMES = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"}
"""Official names of released models."""


def data_set_label(name: str, released: str | None, scale: str) -> str:
    """Return the label that the scale file gives a data set. `released` is the name of a released model, which is
    removed from the end of the name of its data set.
    """
    name = name.removesuffix(released).strip("-") or "text" if released else name
    return _scale_labels(scale).get(name, name)


TABLE_LABELS = {"novels": "English novels", "books": "six books", "docstrings": "Python docstrings"}
"""Labels of data sets in tables and documents. Figures use the shorter labels of the scale file."""
PRUNING_LABELS = TABLE_LABELS | {"books": "seven books"}
"""Labels of the texts of the pruning study, whose test books are others."""
_SCHEDULES = {"onecycle": "one-cycle", "noam": "inverse square root"}


def regime_label(regime: str, scale: str) -> str:
    """Return the label of a regime (`families.regime`): the data set and the learning rate schedule."""
    name, _, schedule = regime.partition(", ")
    kind, _, end = schedule.partition(" to ")
    words = f"{_SCHEDULES.get(kind, kind)} learning rate" * bool(kind)
    if end:
        words += " to zero" if end == "0" else f" to {end} of its peak"
    label = data_set_label(name, None, scale)
    return ", ".join(filter(None, [TABLE_LABELS.get(label, label), words]))


def data_set_labels(names: "Series[str]", scale: str) -> "Series[str]":
    """Return the labels of data sets, and missing values for missing names."""
    return names.map(lambda name: data_set_label(name, None, scale), na_action="ignore")


@cache
def _scale_labels(scale: str) -> dict[str, str]:
    labels: dict[str, str] = read_scale(Path(), scale).get("labels", {})
    return labels
