"""Tables for readers, and self-contained HTML pages without scripts, fonts or images.

The content may come from other people's results, so all of it is escaped as text.
"""

import math
import re
from collections.abc import Collection, Sequence
from html import escape
from typing import Any

import pandas as pd
from pandas import DataFrame

from formerlab.report.runs import format_count

HEADINGS = {
    "loss_nats": "held-out loss (nats)",
    "loss_minus_plain_nats": "loss minus plain (nats)",
    "increase_nats": "loss minus Full (nats)",
    "top1_percent": "top-1 (%)",
    "top5_percent": "top-5 (%)",
    "top1_points": "top-1 minus compared (points)",
    "layers": "blocks",
    "lr": "peak rate",
    "regime": "data set, schedule",
    "flops_cumulative": "cumulative FLOPs",
    "parameters_non_embedding": "parameters without embedding",
    "realised_budget": "measured cache size",
    "recent_share": "recent fraction",
    "selected_share": "selected fraction",
    "cache_share": "cache (fraction of Full)",
    "start_share": "start (fraction of steps)",
    "sacrebleu": "sacreBLEU",
    "bleu": "BLEU",
    "acc_own": "accuracy, own alpha",
    "acc_common": "accuracy, common alpha",
    "acc_float32": "accuracy in float32",
    "acc_model": "accuracy, model's precision",
}
"""Headings of columns."""
_UNITS = {"nats": "nats", "percent": "%", "points": "points", "s": "s", "megabytes": "MB"}
_SUFFIXES = ("_low", "_high", "_se")

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
    """Return a table as HTML; a line feed in a cell begins a new line."""
    cells = frame.astype(object).where(frame.notna(), "").map(_escape_lines)
    return str(cells.rename(columns=_escape_lines).to_html(index=False, escape=False, border=0, justify="left"))


def _escape_lines(value: object) -> str:
    return escape(str(value)).replace("\n", "<br>")


def caption_title(caption: str) -> str:
    """Return the first sentence of a caption without its source in brackets; a long sentence is cut at a comma."""
    first = re.split(r"(?<=\?)\s|(?<!Fig)(?<!Figs)[.:;]\s", caption, maxsplit=1)[0].rstrip(".")
    first = re.split(r",? after (?:Fig|Table)| \([^)]*arXiv", first)[0]
    clauses = re.match(r"(.{30,110}), ", first)
    return clauses[1] if clauses and len(first) > 110 else first


def to_see(caption: str) -> str:
    """Return the sentence of a caption that says what to look for; empty if there is none."""
    sentence = caption.partition("To see: ")[2].split(". ")[0].rstrip(".")
    return f"To see: {sentence}." if sentence else ""


def format_table(table: DataFrame, hidden: Collection[str] = ()) -> DataFrame:
    """Return the table as text: `x` with `x_low` and `x_high` as `x [low, high]`, with `x_se` as `x ± se`.

    Columns without any value and `hidden` columns are dropped. So are the policy and its settings if the table has a
    column `configuration`, which names them.
    """
    columns, in_configuration = {}, ("policy", "alpha", "recent") if "configuration" in table else ()
    for name in table.columns:
        if name in ("source", *in_configuration, *hidden) or name.endswith(_SUFFIXES) or table[name].isna().all():
            continue
        spreads = [table.get(name + suffix, pd.Series(math.nan, table.index)) for suffix in _SUFFIXES]
        columns[column_heading(name)] = [_cell(name, *cells) for cells in zip(table[name], *spreads, strict=True)]
    return DataFrame(columns)


def without_constants(cells: DataFrame) -> tuple[DataFrame, str]:
    """Return a formatted table without its constant columns, and a sentence with the constant values."""
    constant = [name for name in cells if len(cells) > 1 and len(set(cells[name])) == 1]
    values = "; ".join(f"{name} {value}" for name in constant if (value := cells[name].iloc[0]))
    return cells.drop(columns=constant), f"In all rows: {values}." if values else ""


def column_heading(name: str) -> str:
    """Return the heading of a column, with its unit in brackets."""
    if name in HEADINGS:
        return HEADINGS[name]
    if "(" in name:
        return name.replace("_local", "").replace("_", " ")
    text = re.sub(r"_per_s$", "/s", name).replace("_", " ").replace("flops", "FLOPs")
    quantity, _, unit = text.rpartition(" ")
    return f"{quantity} ({_UNITS[unit]})" if quantity and unit in _UNITS else text


def _cell(name: str, value: Any, low: float, high: float, error: float) -> str:
    if pd.isna(value):
        return ""
    if not isinstance(value, int | float):
        return str(value)
    if math.isnan(low) and math.isnan(error):
        return format_number(name, value)
    largest = max(abs(end) for end in (value, low, high) if not math.isnan(end))
    if not math.isnan(error):  # an error has at least one significant digit; a published error of 0.00 has two decimals
        largest = min(largest, 100 * error or 1.0)
    text = format_number(name, value, largest)
    text += "" if math.isnan(low) else f" [{format_number(name, low, largest)}, {format_number(name, high, largest)}]"
    return text if math.isnan(error) else f"{text} ± {format_number(name, error, largest)}"


def format_number(name: str, value: float, largest: float = math.nan) -> str:
    """Return a number with three significant digits, nats with three decimals, or a perplexity alone with two.

    Numbers that are shown together, such as the ends of an interval, have the decimals of the `largest`. A rounded -0
    has no sign.
    """
    size = abs(value) if math.isnan(largest) else largest
    if name.startswith(("parameters", "tokens")):
        return format_count(value, 3)
    if name == "perplexity" and math.isnan(largest) and size < 1000:
        return f"{value:.2f}"
    if math.isnan(largest) and value == round(value) and size < 1e5 and "nats" not in name:
        return f"{value:z,.0f}"
    if size >= 1e5 or not math.isfinite(size) or (math.isnan(largest) and size < 100 and "nats" not in name):
        return f"{value:z.3g}"
    decimals = min(4, max(0, 2 - math.floor(math.log10(size)))) if size else 0
    return f"{value:z,.{max(decimals, 3) if 'nats' in name else decimals}f}"


def text_table(table: DataFrame) -> str:
    """Return a table as aligned text for a terminal."""
    return str(format_table(table).to_markdown(index=False, tablefmt="simple", disable_numparse=True))


def markdown_table(cells: DataFrame) -> str:
    """Return a formatted table as a Markdown table."""
    escaped = cells.map(escape_markdown).rename(columns=escape_markdown)
    return str(escaped.to_markdown(index=False, disable_numparse=True))


def escape_markdown(text: str) -> str:
    """Return a text escaped for a cell of a Markdown table: one line without HTML, links and images."""
    text = escape(text, quote=False).replace("\\", "&#92;").replace("](", "]&#40;")
    return text.replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")
