"""Formulas of the site: convert fenced `math` blocks of LaTeX to MathML, which browsers render without a script."""

from typing import Any

from latex2mathml.converter import convert


def to_mathml(source: str, *_: Any, **__: Any) -> str:
    """Return a formula as a block of MathML that scrolls on a narrow screen."""
    return f'<div class="math" style="overflow-x: auto">{convert(source, display="block")}</div>'
