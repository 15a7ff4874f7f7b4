"""Pages of HTML that need nothing but themselves: no script, no font, no picture from elsewhere.

What they show may come from elsewhere, in an archive of results: all of it stands there as text, and does nothing.
"""

from collections.abc import Sequence
from html import escape

from pandas import DataFrame

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 1.5em; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 1.6em; }
p { max-width: 62em; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page; `parts` are HTML."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f'<!doctype html>\n<html lang="en">\n<head>{meta}<title>{escape(title)}</title>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f"{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"


def heading(text: str) -> str:
    """Return a heading of a part."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def table(frame: DataFrame) -> str:
    """Return a table; a line feed in a cell begins a new line."""
    cells = frame.astype(object).where(frame.notna(), "").map(_lines)
    return str(cells.rename(columns=_lines).to_html(index=False, escape=False, border=0, justify="left"))


def _lines(value: object) -> str:
    return escape(str(value)).replace("\n", "<br>")


def markdown(text: str) -> str:
    """Return what shows as this text in a cell of a table in Markdown: one line without HTML, links and pictures."""
    text = escape(text, quote=False).replace("\\", "&#92;").replace("](", "]&#40;")
    return text.replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
