"""Tables for readers, and self-contained HTML pages without scripts or fonts.

The content may come from other people's results, so all of it is escaped.
"""

import math
import re
from collections.abc import Collection, Sequence
from html import escape

import pandas as pd
from pandas import DataFrame

from formerlab.report.columns import MINUS, column, is_spread, texts

_NUMBER = re.compile(rf"[{MINUS}+]?\d[\d.,]*[kMB]?(?:e\d+)?(?:\s[\[±].*)?$")
"""Matches the text of a number, also with an interval or an error."""
DAGGER, SECTION = "\N{DOUBLE DAGGER}", "\N{SECTION SIGN}"
"""`DAGGER` marks a pooled interval that excludes the null value although the interval of these seeds alone includes it.
`SECTION` marks the opposite case."""
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; margin: 1.5em; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 1.6em; }
p { max-width: 62em; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
"""


def html_page(title: str, blocks: Sequence[str]) -> str:
    """Return a complete page from blocks of HTML."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f'<!doctype html>\n<html lang="en">\n<head>{meta}<title>{escape(title)}</title>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *blocks])
    return f"{head}<style>{STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"


def heading(text: str) -> str:
    """Return a section heading as HTML."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """Return a paragraph as HTML."""
    return f"<p>{escape(text)}</p>"


def html_table(frame: DataFrame) -> str:
    """Return a table as HTML. A line feed in a cell starts a new line, and `**text**` is bold."""
    cells = frame.astype(object).where(frame.notna(), "").map(_escape_lines)
    return str(cells.rename(columns=_escape_lines).to_html(index=False, escape=False, border=0, justify="left"))


def _escape_lines(value: object) -> str:
    return re.sub(r"^\*\*(.+)\*\*$", r"<b>\1</b>", escape(str(value)).replace("\n", "<br>"))


def caption_title(caption: str) -> str:
    """Return the title of a caption: its text up to the first `?`, `.`, `:` or `;`, or up to its source (a figure or
    table of a paper, or an arXiv number in brackets). If this is longer than 110 characters, cut it at a comma.
    """
    first = re.split(r"(?<=\?)\s|(?<!Fig)(?<!Figs)[.:;]\s", caption, maxsplit=1)[0].rstrip(".")
    first = re.split(r",? after (?:Fig|Table)| \([^)]*arXiv", first)[0]
    clauses = re.match(r"(.{30,110}), ", first)
    return clauses[1] if clauses and len(first) > 110 else first


def takeaway(caption: str) -> str:
    """Return `To see: <sentence>.` of a caption, or an empty string."""
    sentence = caption.partition("To see: ")[2].split(". ")[0].rstrip(".")
    return f"To see: {sentence}." if sentence else ""


def bullets(caption: str) -> list[str]:
    """Return a caption without its title, split into list items at ` - `."""
    text = caption.removeprefix(caption_title(caption)).lstrip(",.:;? ")
    return [part[:1].upper() + part[1:] for part in f" {text}".split(" - ") if part.strip()]


def bullet_list(lines: Sequence[str]) -> str:
    """Return lines as a list in HTML."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def visible_columns(table: DataFrame, hidden: Collection[str] = ()) -> list[str]:
    """Return the names of the columns with values, except `source`, `is_reference`, ends of intervals, errors and
    `hidden` columns.

    The policy and its settings are also left out if a column `configuration` already names them.
    """
    named = ("policy", "alpha", "recent") if "configuration" in table else ()
    left_out = ("source", "is_reference", *named, *hidden)
    return [str(name) for name in table if not (name in left_out or is_spread(name) or table[name].isna().all())]


def format_table(table: DataFrame, hidden: Collection[str] = ()) -> DataFrame:
    """Return the columns of `visible_columns` as text: `x` with `x_low` and `x_high` as `x [low, high]`, with `x_se` as
    `x ± se`. The pooled interval, `x_pooled_low` and `x_pooled_high`, replaces the other one, because verdicts use it.
    ‡ marks a pooled interval that excludes the null value although the interval of these seeds alone includes it, and §
    marks the opposite case. Empty differences in the rows with a true `is_reference` are "reference".
    """
    cells, empty = {}, pd.Series(math.nan, table.index)
    reference = table.get("is_reference", pd.Series(False, table.index)).eq(True)
    for name in visible_columns(table, hidden):
        seed_low, seed_high = (table.get(f"{name}_{end}", empty) for end in ("low", "high"))
        low, high = (table.get(f"{name}_pooled_{end}", empty) for end in ("low", "high"))
        low, high, null = low.fillna(seed_low), high.fillna(seed_high), column(name).null
        excluded, excluded_by_seeds = low.gt(null) | high.lt(null), seed_low.gt(null) | seed_high.lt(null)
        differ = low.notna() & seed_low.notna() & excluded.ne(excluded_by_seeds)
        marks = excluded.map({True: DAGGER, False: SECTION}).where(differ, "")
        column_texts = texts(name, table[name], low, high, table.get(f"{name}_se", empty))
        is_difference = "minus" in name or f"{name}_low" in table
        cells[column(name).heading] = [
            "reference" if is_difference and is_reference and not text else text + mark
            for text, is_reference, mark in zip(column_texts, reference, marks, strict=True)
        ]
    return DataFrame(cells, index=table.index)


def without_constants(cells: DataFrame) -> tuple[DataFrame, str]:
    """Return a formatted table without its constant columns (except verdicts), and a sentence with their values."""
    constant = [name for name in cells if len(cells) > 1 and len(set(cells[name])) == 1 and "verdict" not in str(name)]
    values = "; ".join(f"{name} {value}" for name in constant if (value := cells[name].iloc[0]))
    return cells.drop(columns=constant), f"In all rows: {values}." if values else ""


def markdown_table(cells: DataFrame) -> str:
    """Return a formatted table as a padded Markdown table. Columns of numbers are aligned right."""
    escaped = cells.map(escape_markdown).rename(columns=escape_markdown)
    sides = ["right" if any(map(_NUMBER.match, cells[name])) else "left" for name in cells]
    return str(escaped.to_markdown(index=False, disable_numparse=True, colalign=sides))


def escape_markdown(text: str) -> str:
    """Escape a text for a cell of a Markdown table, so that it contains no HTML, links, images or line feeds."""
    text = escape(text, quote=False).replace("\\", "&#92;").replace("](", "]&#40;")
    return text.replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
