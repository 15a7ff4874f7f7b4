"""Formulas of the site: a fenced block `math` of LaTeX becomes MathML, which browsers draw without a script."""

from typing import Any

from latex2mathml.converter import convert


def to_mathml(source: str, *_: Any, **__: Any) -> str:
    """Return a formula as a block of MathML, which may be scrolled where the screen is narrow."""
    return f'<div class="math" style="overflow-x: auto">{convert(source, display="block")}</div>'
