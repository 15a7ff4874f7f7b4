"""Tables for readers, and self-contained HTML pages without scripts and fonts.

The content may come from other people's results, so all of it is escaped.
"""

import math
import re
from collections.abc import Collection, Sequence
from html import escape

import pandas as pd
from pandas import DataFrame

from formerlab.report.columns import column, is_spread, texts

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
    """Return a table as HTML. A line feed in a cell begins a new line."""
    cells = frame.astype(object).where(frame.notna(), "").map(_escape_lines)
    return str(cells.rename(columns=_escape_lines).to_html(index=False, escape=False, border=0, justify="left"))


def _escape_lines(value: object) -> str:
    return re.sub(r"^\*\*(.+)\*\*$", r"<b>\1</b>", escape(str(value)).replace("\n", "<br>"))


def caption_title(caption: str) -> str:
    """Return the first sentence of a caption without its source in brackets, cut at a comma if it is long."""
    first = re.split(r"(?<=\?)\s|(?<!Fig)(?<!Figs)[.:;]\s", caption, maxsplit=1)[0].rstrip(".")
    first = re.split(r",? after (?:Fig|Table)| \([^)]*arXiv", first)[0]
    clauses = re.match(r"(.{30,110}), ", first)
    return clauses[1] if clauses and len(first) > 110 else first


def takeaway(caption: str) -> str:
    """Return `To see: <sentence>.` of a caption, or an empty string."""
    sentence = caption.partition("To see: ")[2].split(". ")[0].rstrip(".")
    return f"To see: {sentence}." if sentence else ""


def body(caption: str) -> str:
    """Return a caption without its title."""
    text = caption.removeprefix(caption_title(caption)).lstrip(",.:;? ")
    return text[:1].upper() + text[1:]


def visible_columns(table: DataFrame, hidden: Collection[str] = ()) -> list[str]:
    """Return the names of the columns with values, except `source`, ends of intervals, errors and `hidden` columns.

    The policy and its settings are also left out if a column `configuration` already names them.
    """
    named = ("policy", "alpha", "recent") if "configuration" in table else ()
    left_out = ("source", "bold", *named, *hidden)
    return [str(name) for name in table if not (name in left_out or is_spread(name) or table[name].isna().all())]


def format_table(table: DataFrame, hidden: Collection[str] = ()) -> DataFrame:
    """Return the columns of `visible_columns` as text: `x` with `x_low` and `x_high` as `x [low, high]`, with `x_se` as
    `x ± se`. The pooled interval, `x_pooled_low` and `x_pooled_high`, replaces the other one, because verdicts use it.
    """
    cells, empty = {}, pd.Series(math.nan, table.index)
    for name in visible_columns(table, hidden):
        low, high = (
            table.get(f"{name}_pooled_{end}", empty).fillna(table.get(f"{name}_{end}", empty))
            for end in ("low", "high")
        )
        cells[column(name).heading] = texts(name, table[name], low, high, table.get(f"{name}_se", empty))
    return DataFrame(cells, index=table.index)


def mark_bold(cells: DataFrame, table: DataFrame) -> DataFrame:
    """Return the cells; the last interval of each row with a true `bold` in `table` is put between asterisks."""
    bold = table["bold"].eq(True) if "bold" in table else pd.Series(False, table.index)
    intervals = cells.apply(lambda texts: texts.str.contains(" [", regex=False))
    last = intervals & intervals.iloc[:, ::-1].cumsum(axis=1).iloc[:, ::-1].eq(1)
    return cells.mask(last.mul(bold.to_numpy(), axis=0), "**" + cells + "**")


def without_constants(cells: DataFrame) -> tuple[DataFrame, str]:
    """Return a formatted table without its constant columns, and a sentence with the constant values."""
    constant = [name for name in cells if len(cells) > 1 and len(set(cells[name])) == 1]
    values = "; ".join(f"{name} {value}" for name in constant if (value := cells[name].iloc[0]))
    return cells.drop(columns=constant), f"In all rows: {values}." if values else ""


def markdown_table(cells: DataFrame) -> str:
    """Return a formatted table as a Markdown table."""
    escaped = cells.map(escape_markdown).rename(columns=escape_markdown)
    return str(escaped.to_markdown(index=False, disable_numparse=True))


def escape_markdown(text: str) -> str:
    """Escape a text for a cell of a Markdown table, so that it contains no HTML, links, images or line feeds."""
    text = escape(text, quote=False).replace("\\", "&#92;").replace("](", "]&#40;")
    return text.replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
