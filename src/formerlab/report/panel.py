"""One grammar of drawings: a figure is panels over tidy rows, which know their means, ends, seeds and sources.

A panel names columns. `<y>_low` and `<y>_high` are the ends of an interval; `part` is `mean`, or `seed` for a value
that a mean is made of; `source` is `ours` or `published`. Rows without an x are lines across. Seeds are dots or thin
lines beside their mean. A panel of published values has a ground of its own. A figure is at most 7 inches wide, with
letters of 8 points, and says which data set and which models it shows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.marks import mark
from formerlab.report.runs import missing_note, seed_notes
from formerlab.report.style import BLACK, LETTER, PUBLISHED_INK, WIDEST, headed, look, placed, wrapped

Style = dict[str, Any]
NARROWEST = 1.3
"""Inches of a panel; rather than be narrower, it has a row of its own."""
SETTING = "{setting}"
"""In a title, the data set and the models of the rows."""


@dataclass(frozen=True)
class Panel:
    """A panel: which rows it shows, and how."""

    x: str
    y: str
    by: str = "variant"
    """Column whose values are the series."""
    kind: Literal["line", "band", "forest"] = "line"
    """Points with bars, joined; curves in bands; or a forest: values of x across, and a line for each y."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns, or lists of values, of the rows that are shown."""
    each: str = ""
    """Column of which every value has a panel, called after it where no title is given."""
    title: str | Callable[[DataFrame], str] = SETTING
    xlabel: str | Callable[[DataFrame], str] = ""
    ylabel: str = ""
    zero: float | None = None
    """Where a line stands to compare with."""
    far: float = 0.0
    """A value this many times as far from zero, or from the lowest, as all nearer ones stands at the edge in words."""
    log: str = ""
    """Which axes are logarithmic where all values allow it: x, y or xy."""
    name: Literal["edge", "legend", "none"] = "edge"
    """Whether series are named beside their last points, or in one legend above all panels."""
    style: str | Mapping[str, Sequence[str]] | Callable[[str, DataFrame], Style] = ""
    """Colour and marker by name, a column with what is looked up, or what returns both; else the name is looked up."""
    ticks: Callable[[float], str] | None = None
    """How the values of x are written; then each of them has a tick."""
    ring: str = ""
    """Column that says which points are ringed."""
    empty: str = ""
    """Column that says which points are hollow."""
    perplexity: bool = False
    """Whether the right axis reads losses in nats as perplexities."""
    finish: Callable[[Axes, DataFrame], object] = lambda axes, rows: None
    """Adds what this panel alone has."""

    def rows(self, data: DataFrame) -> DataFrame:
        """Return the rows that are shown."""
        for column, wanted in self.where.items():
            data = data[data[column].isin(wanted if isinstance(wanted, list | tuple | set) else [wanted])]
        return data

    def split(self, data: DataFrame) -> "list[Panel]":
        """Return a panel for each value of `each`, without those that have no rows."""
        rows = self.rows(data)
        if not self.each:
            return [self] * bool(len(rows))
        title = str if self.title == SETTING else lambda one: self.title
        values = rows[self.each].dropna().drop_duplicates()
        return [replace(self, each="", title=title(one), where={**self.where, self.each: one}) for one in values]

    def look(self, name: str, rows: DataFrame) -> Style:
        """Return how a series is drawn; published points are hollow."""
        if callable(self.style):
            found = self.style(name, rows)
        else:
            looked_up = str(rows[self.style].iloc[0]) if isinstance(self.style, str) and self.style else name
            known = self.style[name] if isinstance(self.style, Mapping) else look(looked_up)
            found = dict(zip(("color", "marker"), known, strict=True))
        return found | hollow(rows["source"].eq("published").all())

    def heading(self, rows: DataFrame) -> str:
        """Return the title of a panel of these rows."""
        words = self.title if isinstance(self.title, str) else self.title(rows)
        if rows["source"].eq("published").all():
            return f"PUBLISHED, not ours: {words}"
        return words.replace(SETTING, setting(rows)).strip(": ")


def hollow(wanted: object) -> Style:
    """Return the style of markers without a filling, where wanted."""
    return {"markerfacecolor": "white"} if wanted else {}


def setting(rows: DataFrame) -> str:
    """Return the data sets and the models of rows of ours, such as `books, 4 blocks x 64`, where rows know them."""
    ours = rows[rows["source"].eq("ours") & rows["data_set"].notna()] if "released" in rows else rows[:0]
    if ours.empty:
        return ""
    named = list(ours["released"].dropna().unique())
    ends = [sorted({int(value) for value in ours[name].dropna()}) for name in ("blocks", "wide")]
    blocks, wide = (" to ".join(map(str, dict.fromkeys([*values[:1], *values[-1:]]))) for values in ends)
    models = named or [f"{blocks} blocks x {wide}"] * bool(blocks)
    return ", ".join([*filter(None, ours["data_set"].unique()), *models])


def sheet(
    *panels: Panel,
    notes: Sequence[str | Callable[[DataFrame], str]] = (),
    wanted: Sequence[str] = (),
    columns: int = 2,
    height: float = 2.1,
) -> Callable[[DataFrame], Figure]:
    """Return what draws the rows of a figure; the caption says the `notes`, and which of the `wanted` series lack."""

    def drawn(data: DataFrame) -> Figure:
        said = [note if isinstance(note, str) else note(data) for note in notes]
        present = [str(name) for name in data[panels[0].by].dropna().unique()]
        return figure(data, panels, [*seed_notes(data), *said, *missing_note(present, wanted)], columns, height)

    return drawn


def figure(
    data: DataFrame, panels: Sequence[Panel], notes: Sequence[str], columns: int = 2, height: float = 2.1
) -> Figure:
    """Return the figure of some panels, and the notes that belong to its caption."""
    shown = [(panel, panel.rows(data)) for each in panels for panel in each.split(data)]
    for count in range(min(columns, len(shown)), 0, -1):
        columned = [shown[column::count] for column in range(count)]
        lefts, rights = ([max(room(*one) for one in column) for column in columned] for room in (_left, _right))
        width = (WIDEST - sum(lefts) - sum(rights)) / count
        if width > NARROWEST:
            break
    titles = [fill(panel.heading(rows), int(width / LETTER)) for panel, rows in shown]
    starts = range(0, len(shown), count)
    tops = [0.18 + 0.15 * max(bool(title) + title.count("\n") for title in titles[at : at + count]) for at in starts]
    heights = [max(_height(*one, height) for one in shown[at : at + count]) for at in starts]
    handles = _handles(shown)
    across = max(1, int(WIDEST / (0.55 + LETTER * max((len(name) for name in handles), default=1))))
    known = setting(data)
    said = "" if any(known.split(", ")[0] in title for title in titles) else known
    head = 0.17 * (-(-len(handles) // across) + bool(said))
    found, axes = placed(len(shown), width, lefts, rights, heights, tops, 0.5, head)
    for one, (panel, rows), title in zip(axes, shown, titles, strict=True):
        mark(one, panel, rows)
        one.set_title(title, color=PUBLISHED_INK if title.startswith("PUBLISHED") else BLACK)
    headed(found, said)
    if handles:
        at = (0, 1 - 0.17 * bool(said) / found.get_size_inches()[1])
        found.legend(handles.values(), handles, loc="upper left", bbox_to_anchor=at, ncols=across, borderaxespad=0.1)
    found.set_label(" ".join(note for note in notes if note))
    return found


def _height(panel: Panel, rows: DataFrame, height: float) -> float:
    if panel.kind != "forest":
        names = wrapped("\n".join(map(str, rows[panel.by].unique()))) if panel.name == "edge" else ""
        return max(height, 0.135 * (1 + names.count("\n")))
    series = rows[panel.by].nunique() if panel.by != panel.y else 1
    lines = max(str(name).count("\n") + 1 for name in rows[panel.y].unique())
    return (0.1 + 0.13 * lines + 0.06 * (series - 1)) * rows[panel.y].nunique() + 0.25


def _left(panel: Panel, rows: DataFrame) -> float:
    if panel.kind != "forest":
        return 0.62 + 0.13 * len(panel.ylabel.split("\n"))
    return 0.2 + LETTER * max(len(line) for name in rows[panel.y].unique() for line in str(name).split("\n"))


def _right(panel: Panel, rows: DataFrame) -> float:
    if panel.perplexity:
        return 0.6
    if panel.name != "edge" or panel.kind == "forest":
        return 0.12
    return 0.2 + LETTER * max(len(line) for name in rows[panel.by].unique() for line in wrapped(name).split("\n"))


def _handles(shown: Sequence[tuple[Panel, DataFrame]]) -> dict[str, Line2D]:
    """Return a handle for each series of the panels that have a legend."""
    found: dict[str, Line2D] = {}
    for panel, rows in shown:
        for name, points in rows.groupby(panel.by, sort=False) if panel.name == "legend" else ():
            found.setdefault(str(name), Line2D([], [], **panel.look(str(name), points)))
    return found
