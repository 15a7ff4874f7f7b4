"""Figure layout: a figure consists of panels over tidy rows with means, interval ends, seeds and sources.

A panel names columns. `<y>_low` and `<y>_high` are the ends of an interval (thin bar). `<y>_pooled_low` and
`<y>_pooled_high` are the ends of the pooled interval that verdicts use (`cells.with_pooled`, thick bar). `<x>_limit`
of a forest plot is the threshold of a claim, drawn as a dashed line. Values between the threshold and `<x>_met`, which
may be infinite, meet the claim and are shaded. Rows with a `seed` are the values of single seeds, which are dots or
thin lines beside their mean. `source` is `ours` or `published`. In line and band panels, rows without an x are
horizontal lines; forest plots omit them. Rows without a series are not drawn. Published values are on a tinted
background. A figure is at most 7 inches wide with 8-point text (notes and numbers in panels: 7 points), and names its
data set and models.

Some columns are only for the figure: `_style` overrides the name by which the plot style of a series is looked up;
`_color`, `_marker`, `_linestyle` and `_markerfacecolor` replace entries of the plot style.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from textwrap import fill
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.marks import drawn_marks, mark, mark_outside
from formerlab.report.runs import seed_notes
from formerlab.report.style import (
    BLACK,
    EDGES,
    GREY,
    HOLLOW,
    LETTER,
    LIMIT_STYLE,
    WIDEST,
    PlotStyle,
    label_at_edge,
    plot_style,
    wrap,
)

_STYLE_OVERRIDES = ("color", "marker", "linestyle", "markerfacecolor")


@dataclass(frozen=True)
class Panel:
    """The rows that a panel shows, and how it draws them."""

    x: str
    y: str
    by: str = "variant"
    """Column whose values are the series; for a heat map, column with the values of the cells."""
    kind: Literal["line", "band", "forest", "heat"] = "line"
    """line: joined points with bars; band: curves in bands; forest: x with a bar, one line per y; heat: a heat map."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """Selects rows by column: a value or a list of values."""
    facet: str = ""
    """Facet column: each value has its own panel."""
    title: str = ""
    """Title: what is compared. Names in braces are columns of the first row; by default, the value of `facet`. The note
    below the panels has the data set and the models."""
    xlabel: str = ""
    """Label of the x axis, with names in braces as in `title`."""
    ylabel: str = ""
    zero: float | None = None
    """Value of a reference line."""
    log: str = ""
    """Axes that are logarithmic if all values are positive: x, y or xy."""
    name: Literal["edge", "legend", "inside", "none"] = "edge"
    """edge: series are named beside their last points; legend: in one legend above all panels; inside: in a legend in
    the upper right of the panel; none: series have no names."""
    style: str = "_style"
    """Column by which the plot style of a series is looked up; by default, the name of the series."""
    apart: float = 0.0
    """Distance between the series of a line panel with intervals, in units of x (of its logarithm on a logarithmic
    axis), so that no bar hides another."""
    unit: str = ""
    """Column that separates the lines of one series, such as the run."""
    share_y: bool = False
    """Whether adjacent panels share the y axis: only the first shows its label. Forest plots also share the categories
    of y; missing ones are blank rows."""
    ticks: Callable[[float], str] | None = None
    """Formats the values of x. If set, each value has a tick."""

    colours: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `imshow` for a heat map; by default 0 is white and 1 has the colour of the plot style."""
    bar: str = ""
    """Label of a colour bar above all panels; empty for no bar."""
    finish: Callable[[Axes, DataFrame], object] = lambda axes, rows: None
    """Adds details that only this panel has."""
    same_limits: Literal["", "x", "y"] = ""
    """Axis whose limits are equal in all panels that plot the same data column on it."""

    def split(self, data: DataFrame) -> "list[tuple[Panel, DataFrame]]":
        """Return the panels with their rows: this panel, or a panel per value of `facet`; [] without rows."""
        for column, values in self.where.items():
            data = data[data[column].isin(values if isinstance(values, list) else [values])]
        data = data.dropna(subset=self.by)
        if not self.facet:
            return [(self, data)] if len(data) else []
        panel = replace(self, title=self.title or f"{{{self.facet}}}")
        return [(panel, rows) for _, rows in data.groupby(self.facet, sort=False)]

    def plot_style(self, name: str, rows: DataFrame) -> PlotStyle:
        """Return the plot style of a series; published points are hollow without `_markerfacecolor`."""
        first = rows.iloc[0]
        overrides = {key: first[f"_{key}"] for key in _STYLE_OVERRIDES if isinstance(first.get(f"_{key}"), str)}
        hollow = HOLLOW if rows["source"].eq("published").all() else {}
        return plot_style(str(first.get(self.style, name))) | hollow | overrides

    def handles(self, rows: DataFrame) -> dict[str, Line2D]:
        """Return the legend handles of the series of these rows."""
        handles = {}
        for name, points in rows.groupby(self.by, sort=False):
            level = {"marker": "", "linestyle": "--"} if points[self.x].isna().all() else {}
            handles[str(name)] = Line2D([], [], **self.plot_style(str(name), points) | level)
        return handles

    def heading(self, rows: DataFrame) -> str:
        """Return the title of a panel with these rows."""
        words = fill_names(self.title, rows)
        return f"PUBLISHED, not ours: {words}" if rows["source"].eq("published").all() else words


def fill_names(text: str, rows: DataFrame) -> str:
    """Return a text with the names in braces replaced by the columns of the first row and the setting."""
    return text.format_map({**rows.iloc[0], "setting": setting(rows)}).strip(": ")


def setting(rows: DataFrame) -> str:
    """Return the data sets and models of our rows, such as `books, 4 blocks, width 64`, or "" if they are unknown."""
    ours = rows[rows["source"].eq("ours") & rows["_data_set"].notna()] if "_released" in rows else rows[:0]
    if ours.empty:
        return ""
    named = list(ours["_released"].dropna().unique())
    ends = [sorted({int(value) for value in ours[name].dropna()}) for name in ("_blocks", "_wide")]
    blocks, wide = (" to ".join(map(str, dict.fromkeys([*values[:1], *values[-1:]]))) for values in ends)
    models = named or [f"{blocks} blocks, width {wide}"] * bool(blocks)
    return ", ".join([*filter(None, ours["_data_set"].unique()), *models])


def with_claims(note: str, rows: DataFrame, letters: int) -> str:
    """Return a note with `letters` per line, and below it the verdicts of column `_claims` (`cells.claim_words`)."""
    texts = rows["_claims"].dropna().unique() if "_claims" in rows else ()
    words = [f"Claim{'s' * any(mark in text for mark in ',;')}: {text}." for text in filter(None, texts)]
    return "\n".join(fill(line, letters) for line in filter(None, [note, *words]))


def layout(
    *panels: Panel,
    notes: Callable[[DataFrame], Sequence[str]] = seed_notes,
    wanted: Sequence[str] = (),
    columns: int = 2,
    height: float = 2.1,
    width: float = WIDEST,
    order: str = "",
) -> Callable[[DataFrame], Figure]:
    """Return a function that renders the rows of a figure, sorted by the columns `order`.

    `columns` is the largest number of panels side by side. `height` of a panel and `width` of the figure are in inches.
    `notes` returns notes on the displayed rows for the caption; the first note is also written below the panels. The
    caption also lists the series in `wanted` that have no rows.
    """

    def render(data: DataFrame) -> Figure:
        data = data.sort_values(order.split(), kind="stable") if order else data
        pairs = [pair for panel in panels for pair in panel.split(data)]
        numbers = [rows[panel.x if panel.kind == "forest" else panel.y] for panel, rows in pairs]
        pairs = [pair for pair, values in zip(pairs, numbers, strict=True) if values.notna().any()] or pairs
        visible_rows = data[data.index.isin({at for _, rows in pairs for at in rows.index})]
        present = {str(name) for panel in panels for name in visible_rows[panel.by].dropna()}
        visible_rows.attrs["marks"] = set[str]().union(*(drawn_marks(*pair) for pair in pairs))
        note_texts = notes(visible_rows)
        figure = _figure(visible_rows, pairs, columns, height, width, next(iter(note_texts), ""))
        absent = [name for name in wanted if not any(series.startswith(name) for series in present)]
        missing = [f"Missing, no finished runs: {', '.join(absent)}."] if absent else []
        figure.set_label(" ".join(filter(None, [*note_texts, *missing])))
        return figure

    return render


def _figure(
    data: DataFrame, pairs: Sequence[tuple[Panel, DataFrame]], columns: int, height: float, full_width: float, note: str
) -> Figure:
    """Draw panels in rows below a legend, in a figure that is `full_width` inches wide.

    Positions are fixed in inches without a layout engine, so the final size is known when labels are placed.
    """
    lefts, rights, width, letters = _sides_of_columns(pairs, columns, full_width)
    title_widths = [width + rights[at % len(rights)] - 0.12 for at in range(len(pairs))]
    titles = [fill(panel.heading(rows), int(title_width / LETTER), break_on_hyphens=False)
              for (panel, rows), title_width in zip(pairs, title_widths, strict=True)]  # fmt: skip
    lines = [range(len(pairs))[start : start + len(lefts)] for start in range(0, len(pairs), len(lefts))]
    tops = [0.18 + 0.15 * max(bool(titles[at]) + titles[at].count("\n") for at in line) for line in lines]
    heights = [max(_height(*pairs[at], height, letters) for at in line) for line in lines]
    xlabels = [wrap(fill_names(panel.xlabel, rows), int((width + 0.3) / LETTER)) for panel, rows in pairs]
    handles, first = _handles(pairs), pairs[0][0]
    settings = ", ".join(part for part in setting(data).split(", ") if not any(part in title for title in titles))
    across = max(1, int(full_width / (0.55 + LETTER * _letters(handles))))
    head = 0.17 * -(-len(handles) // across) + 0.37 * bool(first.bar)
    note = "; ".join(filter(None, (settings, note.partition(". ")[0].rstrip("."))))
    note = with_claims(note, data, int(full_width / LETTER))
    foot = 0.14 * (note.count("\n") + bool(note))
    repeated = [panel.same_limits == "x" and at + len(lefts) < len(pairs) for at, (panel, _) in enumerate(pairs)]
    below = [0.1 if all(repeated[at] for at in line) else 0.5 + 0.13 * max(xlabels[at].count("\n") for at in line)
             for line in lines]  # fmt: skip
    total = head + sum(tops) + sum(heights) + sum(below) + foot
    figure, y, drawn = Figure(figsize=(full_width, total)), total - head, []
    figure.text(0.012, 0.03 / total, note, va="bottom", color=GREY, fontsize=7)
    for line, over, tall, under in zip(lines, tops, heights, below, strict=True):
        x, y = 0.0, y - over - tall
        y_colours = _y_colours(data, [pairs[at] for at in line])
        for at, left, right in zip(line, lefts, rights, strict=False):
            axes = figure.add_axes(((x + left) / full_width, y / total, width / full_width, tall / total))
            (panel, rows), title = pairs[at], titles[at]
            drawn.append(mark(axes, panel, rows, y_colours if panel.share_y else {}))
            shared = panel.share_y and at > line[0]
            axes.set_ylabel("" if shared else fill_names(panel.ylabel, rows))
            axes.tick_params(axis="y", labelleft=not shared)
            axes.tick_params(axis="x", labelbottom=not repeated[at])
            axes.set_xlabel("" if repeated[at] else xlabels[at])
            axes.set_title(title, color=GREY if title.startswith("PUBLISHED") else BLACK)
            x += left + width + right
        y -= under
    _equalize_limits(figure, pairs)
    for axes, (panel, _), (labels, means) in zip(figure.axes, pairs, drawn, strict=True):
        mark_outside(axes, panel, means)
        label_at_edge(axes, labels, letters)
    if first.bar:
        _draw_bar(figure, figure.axes[0].images[0], first.bar)
    if handles:
        left = next((k for k, pair in enumerate(pairs[: len(lefts)]) if pair[0].name == "legend"), 0)
        beside = figure.axes[left].get_position().x0 if left else 0.0
        figure.legend(handles.values(), handles, loc="upper left", bbox_to_anchor=(beside, 1), ncols=across,
                      borderaxespad=0.1)  # fmt: skip
    return figure


def _equalize_limits(figure: Figure, pairs: Sequence[tuple[Panel, DataFrame]]) -> None:
    """Set equal limits for all panels that have the same `same_limits` and plot the same column. All these axes are
    linear if one of them could not be logarithmic.
    """
    axes_by_group = defaultdict(list)
    for axes, (panel, _) in zip(figure.axes, pairs, strict=True):
        axes_by_group[panel.same_limits, panel.x if panel.same_limits == "x" else panel.y].append(axes)
    for (letter, _), group in axes_by_group.items():
        if not letter:
            continue
        if len({getattr(axes, f"get_{letter}scale")() for axes in group}) > 1:
            for axes in group:
                axes.set(**{f"{letter}scale": "linear"})
        ends = [getattr(axes, f"get_{letter}lim")() for axes in group]
        for axes in group:
            axes.set(**{f"{letter}lim": (np.min(ends), np.max(ends))})


def _y_colours(data: DataFrame, line: Sequence[tuple[Panel, DataFrame]]) -> dict[Any, str]:
    """Return the colour of each y category of a line of forest plots, in the order of the data. The result is empty for
    panels of another kind and for panels without `share_y`.
    """
    first, colours = line[0][0], dict[Any, str]()
    for panel, rows in line if first.share_y and first.kind == "forest" else ():
        colours |= {name: panel.plot_style(str(name), points)["color"] for name, points in rows.groupby(panel.y)}
    return {name: colours[name] for name in data[first.y].unique() if name in colours}


def _sides_of_columns(
    pairs: Sequence[tuple[Panel, DataFrame]], columns: int, full_width: float
) -> tuple[list[float], list[float], float, int]:
    """Return the margins left and right of each column and the width of a panel, in inches, and the letters per line of
    names beside panels.

    The number of columns is the largest at which panels are wide enough to read.
    """
    least = {"heat": 0.8, "forest": 1.1}.get(pairs[0][0].kind, 1.2)
    for count, letters in product(range(min(columns, len(pairs)), 0, -1), EDGES):
        sides = [[_sides(*pair, letters, column) for pair in pairs[column::count]] for column in range(count)]
        lefts, rights = ([max(margins[side] for margins in column) for column in sides] for side in (0, 1))
        width = (full_width - sum(lefts) - sum(rights)) / count
        if width > least:
            break
    return lefts, rights, max(width, least / 2), letters  # keep a minimum width, even beside very long names


def _handles(pairs: Sequence[tuple[Panel, DataFrame]]) -> dict[str, Line2D]:
    """Return the legend handles of all panels with `name="legend"`, and a handle for the limits of claims, if any."""
    handles: dict[str, Line2D] = {}
    for panel, rows in pairs:
        if panel.name == "legend":
            drawn = rows.dropna(subset=[panel.x] if panel.kind == "forest" else panel.y)
            handles |= {name: line for name, line in panel.handles(drawn).items() if name not in handles}
    if handles and any(f"{panel.x}_limit" in rows for panel, rows in pairs):
        handles["limit of the claim"] = Line2D([], [], **LIMIT_STYLE)
    return handles


def _draw_bar(figure: Figure, image: Any, words: str) -> None:
    """Draw the colour bar of a heat map above all panels."""
    height = figure.get_figheight()
    beside = figure.add_axes((0.6, 1 - 0.17 / height, 0.37, 0.1 / height))
    ticks = [value for value in (-1, -0.3, -0.1, 0, 0.1, 0.3, 1) if image.norm.vmin <= value <= image.norm.vmax]
    figure.colorbar(image, beside, orientation="horizontal", ticks=ticks, format="%g").minorticks_off()
    beside.set_ylabel(words, rotation=0, ha="right", va="center")


def _letters(names: Iterable[object]) -> int:
    """Return the number of letters in the longest line of the names."""
    return max((len(line) for name in names for line in str(name).split("\n")), default=1)


def _height(panel: Panel, rows: DataFrame, height: float, letters: int) -> float:
    """Return the height of a panel in inches. A forest plot grows with its rows; a line or band panel is at least
    `height` high.
    """
    if panel.kind == "heat":
        return height
    if panel.kind != "forest":
        names = "\n".join(wrap(name, letters) for name in rows[panel.by].unique()) if panel.name == "edge" else ""
        return max(height, 0.135 * (1 + names.count("\n")))
    rows = rows.dropna(subset=panel.x)
    series = rows.groupby(panel.y)[panel.by].nunique().max()
    lines = max(str(name).count("\n") + 1 for name in rows[panel.y].unique())
    return (0.1 + 0.13 * lines + 0.06 * (series - 1)) * rows[panel.y].nunique() + 0.25


def _sides(panel: Panel, rows: DataFrame, letters: int, column: int) -> tuple[float, float]:
    """Return the margins left and right of a panel, in inches."""
    if panel.kind == "forest":
        return 0.15 if panel.share_y and column else 0.2 + LETTER * _letters(rows[panel.y].unique()), 0.12
    if panel.kind == "heat":
        lines = len(panel.ylabel.split("\n")) if panel.ylabel and not (panel.share_y and column) else 0
        return 0.28 + 0.09 * bool(lines) + 0.13 * lines, 0.12
    names = [wrap(name, letters) for name in rows[panel.by].unique()]
    right = 0.2 + LETTER * _letters(names) if panel.name == "edge" else 0.12
    return 0.15 if panel.share_y and column else 0.62 + 0.13 * len(panel.ylabel.split("\n")), right
