"""One grammar of drawings: a figure is panels over tidy rows, which know their means, ends, seeds and sources.

A panel names columns. `<y>_low` and `<y>_high` are the ends of an interval; `part` is `mean`, or `seed` for a value
that a mean is made of; `source` is `ours` or `published`. Seeds are dots or thin lines beside their mean. A panel of
published values has a ground of its own. A figure is at most 7 inches wide, with letters of 8 points.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator
from pandas import DataFrame, Series

from formerlab.report.marks import Label, label_at_edge
from formerlab.report.runs import missing_note, seed_notes
from formerlab.report.style import BLACK, PUBLISHED_INK, WIDEST, look, loss_axis, mark_published, widen

Style = dict[str, Any]
LETTER = 0.061
"""Inches that a letter of 8 points takes, about."""
PUBLISHED_LETTERS = 24
"""Letters in a line of the label of a published value."""
NARROWEST = 1.3
"""Inches of a panel; rather than be narrower, it has a row of its own."""


def style_of(name: str, rows: DataFrame) -> Style:
    """Return colour and marker of a series by what readers call it; published points are hollow."""
    colour, marker = look(name)
    return {"color": colour, "marker": marker} | hollow(rows["source"].eq("published").all())


def hollow(wanted: object) -> Style:
    """Return the style of markers without a filling, where wanted."""
    return {"markerfacecolor": "white"} if wanted else {}


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
    title: str | Callable[[DataFrame], str] = ""
    xlabel: str | Callable[[DataFrame], str] = ""
    ylabel: str = ""
    zero: float | None = None
    """Where a line stands to compare with."""
    log: str = ""
    """Which axes are logarithmic: x, y or xy."""
    name: Literal["edge", "legend", "none"] = "edge"
    """Whether series are named beside their last points, or in one legend below all panels."""
    style: Callable[[str, DataFrame], Style] = style_of
    ticks: Callable[[float], str] | None = None
    """How the values of x are written; then each of them has a tick."""
    ring: str = ""
    """Column that says which points are ringed."""
    empty: str = ""
    """Column that says which points are hollow."""
    perplexity: bool = False
    """Whether the right axis reads losses in nats as perplexities."""
    finish: Callable[[Axes, DataFrame], None] = lambda axes, rows: None
    """Adds what this panel alone has."""

    def rows(self, data: DataFrame) -> DataFrame:
        """Return the rows that are shown."""
        for column, wanted in self.where.items():
            data = data[data[column].isin(wanted if isinstance(wanted, list | tuple | set) else [wanted])]
        return data

    def split(self, data: DataFrame) -> "list[Panel]":
        """Return a panel for each value of `each`, without those that have no rows."""
        if not self.each:
            return [self] if len(self.rows(data)) else []
        values = self.rows(data)[self.each].dropna().drop_duplicates()
        return [
            replace(self, each="", title=self.title or str(one), where={**self.where, self.each: one}) for one in values
        ]


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
        columns, columned = count, [shown[column::count] for column in range(count)]
        lefts, rights = ([max(room(*one) for one in column) for column in columned] for room in (_left, _right))
        width = (WIDEST - sum(lefts) - sum(rights)) / columns
        if width > NARROWEST:
            break
    rows = [shown[first : first + columns] for first in range(0, len(shown), columns)]
    tops = [max(_top(panel, of, width) for panel, of in row) for row in rows]
    heights = [max(_height(panel, of, height) for panel, of in row) for row in rows]
    handles = _handles(shown)
    across = max(1, int(WIDEST / (0.55 + LETTER * max((len(name) for name in handles), default=1))))
    below = 0.17 * -(-len(handles) // across) + 0.08 * bool(handles)
    total = sum(tops) + sum(heights) + 0.5 * len(rows) + below
    found, y = Figure(figsize=(WIDEST, total)), total
    for row, top, tall in zip(rows, tops, heights, strict=True):
        y -= top + tall
        x = 0.0
        for (panel, of), left, right in zip(row, lefts, rights, strict=False):
            axes = found.add_axes(((x + left) / WIDEST, y / total, width / WIDEST, tall / total))
            draw(axes, panel, of)
            if title := _title(panel, of):
                axes.set_title(textwrap.fill(title, _letters(width)), color=axes.title.get_color())
            x += left + width + right
        y -= 0.5
    if handles:
        found.legend(handles.values(), handles, loc="lower left", ncols=across, fontsize=8, borderaxespad=0.1)
    found.set_label(" ".join(note for note in notes if note))
    return found


def _title(panel: Panel, rows: DataFrame) -> str:
    words = panel.title if isinstance(panel.title, str) else panel.title(rows)
    return f"PUBLISHED, not ours: {words}" if rows["source"].eq("published").all() else words


def _letters(width: float) -> int:
    return int(width / LETTER)


def _top(panel: Panel, rows: DataFrame, width: float) -> float:
    title = _title(panel, rows)
    return 0.18 + 0.15 * len(textwrap.wrap(title, _letters(width)))


def _height(panel: Panel, rows: DataFrame, height: float) -> float:
    if panel.kind != "forest":
        return height
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
    wrapped = rows["source"].eq("published") & rows[panel.x].isna()
    names = [line for name in rows.loc[~wrapped, panel.by].unique() for line in str(name).split("\n")]
    return 0.2 + LETTER * max([*map(len, names), PUBLISHED_LETTERS * wrapped.any()], default=0)


def _handles(shown: Sequence[tuple[Panel, DataFrame]]) -> dict[str, Line2D]:
    """Return a handle for each series of the panels that have a legend."""
    found: dict[str, Line2D] = {}
    for panel, rows in shown:
        for name, points in rows.groupby(panel.by, sort=False) if panel.name == "legend" else ():
            found.setdefault(str(name), Line2D([], [], **panel.style(str(name), points)))
    return found


def draw(axes: Axes, panel: Panel, rows: DataFrame) -> None:
    """Draw one panel."""
    seeds = rows[rows["part"].eq("seed")] if "part" in rows else rows[:0]
    means = rows.drop(seeds.index)
    levels = means[means[panel.x].isna()]
    means = means.drop(levels.index)
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in panel.log:
            _logarithmic(axis, means[getattr(panel, letter)])
    labels = {"line": _lines, "band": _bands, "forest": _forest}[panel.kind](axes, panel, means, seeds)
    labels += [_level(axes, panel, str(name), level) for name, level in levels.groupby(panel.by, sort=False)]
    if panel.kind != "forest":
        _limit(axes, panel, means, seeds)
    if panel.ticks is not None:
        _ticks(axes, panel, means)
    _name_axes(axes, panel, rows)
    panel.finish(axes, rows)
    if panel.name == "edge" and panel.kind != "forest":
        label_at_edge(axes, labels)


def _logarithmic(axis: Axis, values: Series) -> None:
    """Make an axis logarithmic; where powers of ten are few, write 1, 2 and 5 of each, or ticks of a linear axis."""
    axis._set_axes_scale("log")  # type: ignore[attr-defined]
    axis.set_minor_formatter(NullFormatter())
    if values.max() < 20 * values.min():
        few = values.max() < 4 * values.min()
        axis.set_major_locator(MaxNLocator(4) if few else LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:.3g}".replace("e+", "e"))


def _name_axes(axes: Axes, panel: Panel, rows: DataFrame) -> None:
    if panel.zero is not None:
        (axes.axvline if panel.kind == "forest" else axes.axhline)(panel.zero, color=BLACK, linewidth=0.9, zorder=1)
    axes.set_xlabel(panel.xlabel if isinstance(panel.xlabel, str) else panel.xlabel(rows))
    axes.set_ylabel(panel.ylabel)
    if rows["source"].eq("published").all():
        mark_published(axes, "")
    if panel.perplexity:
        loss_axis(axes)


def _level(axes: Axes, panel: Panel, name: str, level: DataFrame) -> Label:
    """Draw a value that belongs to no x as a line over all of them, in the band of its interval."""
    style, value = panel.style(name, level), float(level[panel.y].iloc[0])
    published = level["source"].eq("published").all()
    colour = PUBLISHED_INK if published else style["color"]
    axes.axhline(value, color=colour, linestyle="-." if published else "--", linewidth=1)
    if level.get(f"{panel.y}_low", Series([np.nan])).notna().all():
        axes.axhspan(level[f"{panel.y}_low"].iloc[0], level[f"{panel.y}_high"].iloc[0], color=colour, alpha=0.15, lw=0)
    words = textwrap.fill(f"PUBLISHED, not ours: {value:+.3f}, {name}", PUBLISHED_LETTERS) if published else name
    return Label(axes.get_xlim()[1], value, words, colour)


def _ends(points: DataFrame, y: str) -> Any:
    """Return how far both ends of an interval are from its mean; 0 where there is none."""
    if f"{y}_low" not in points:
        return None
    both = np.array([points[y] - points[f"{y}_low"], points[f"{y}_high"] - points[y]], dtype=float)
    return np.maximum(np.nan_to_num(both), 0)  # an interval of equal values may be off in its last digit


def _moved(panel: Panel, points: DataFrame, means: DataFrame, name: object, aside: float = 0.0) -> Series:
    """Return the x of points, moved sideways so that no series hides another that has the same x, or nearly."""
    away = np.log if "x" in panel.log else np.asarray
    found, x = away(means[panel.x].astype(float)), away(points[panel.x].astype(float))
    span = float(np.ptp(found)) or 1.0
    beside = means.groupby(np.round(found / (0.012 * span)), sort=False)[panel.by].unique()
    most, gaps = int(beside.map(len).max()), [gap for gap in np.diff(np.unique(found)) if gap > 0.03 * span]
    step = min(0.02 * span, 0.7 * min(gaps, default=span) / most)
    series = [list(beside.get(near, [name])) for near in np.round(x / (0.012 * span))]
    places = [names.index(name) - (len(names) - 1) / 2 if name in names else 0.0 for names in series]
    moved = x + step * (np.array(places) + aside)
    return Series(np.exp(moved) if "x" in panel.log else moved, points.index)


def _lines(axes: Axes, panel: Panel, means: DataFrame, seeds: DataFrame) -> list[Label]:
    labels = []
    for name, points in means.groupby(panel.by, sort=False):
        points = points.sort_values(panel.x, kind="stable")
        style, x, y = panel.style(str(name), points), _moved(panel, points, means, name), points[panel.y]
        axes.errorbar(x, y, _ends(points, panel.y), _ends(points, panel.x), capsize=2, elinewidth=0.9, **style)
        own = seeds[seeds[panel.by] == name]
        axes.plot(_moved(panel, own, means, name, -0.35), own[panel.y], ".", color=style["color"], ms=3, alpha=0.7)
        if panel.ring:
            ringed = points[panel.ring].fillna(value=False).astype(bool)
            axes.plot(x[ringed], y[ringed], "o", color=style["color"], markerfacecolor="none", markersize=11)
        if panel.empty:
            open_ = points[panel.empty].fillna(value=False).astype(bool)
            axes.plot(x[open_], y[open_], **style | hollow(wanted=True) | {"linestyle": "", "zorder": 3})
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), style["color"]))
    return labels


def _bands(axes: Axes, panel: Panel, means: DataFrame, seeds: DataFrame) -> list[Label]:
    labels = []
    for name, points in means.groupby(panel.by, sort=False):
        points = points.sort_values(panel.x, kind="stable")
        style, x, y = panel.style(str(name), points), points[panel.x], points[panel.y]
        axes.plot(x, y, markersize=3.5, markevery=max(1, len(points) // 8), label=str(name), **style)
        if f"{panel.y}_low" in points:
            ends = points[f"{panel.y}_low"].astype(float), points[f"{panel.y}_high"].astype(float)
            axes.fill_between(x, *ends, color=style["color"], alpha=0.15, linewidth=0)
        for _, own in seeds[seeds[panel.by] == name].groupby("seed") if len(seeds) else ():
            axes.plot(own[panel.x], own[panel.y], color=style["color"], linewidth=0.5, alpha=0.6)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), style["color"]))
    return labels


def _forest(axes: Axes, panel: Panel, means: DataFrame, seeds: DataFrame) -> list[Label]:
    names, series = list(means[panel.y].unique())[::-1], list(means[panel.by].unique())
    several = panel.by != panel.y and len(series) > 1
    for name, points in means.groupby(panel.by, sort=False):
        style, own = panel.style(str(name), points), seeds[seeds[panel.by] == name]
        aside = 0.22 * ((len(series) - 1) / 2 - series.index(name)) if several else 0.0
        heights = [names.index(one) + aside for one in points[panel.y]]
        axes.errorbar(points[panel.x], heights, xerr=_ends(points, panel.x), capsize=2, **style | {"linestyle": ""})
        below = [names.index(one) + aside - (0.1 if several else 0.25) for one in own[panel.y]]
        axes.plot(own[panel.x], below, ".", color=style["color"], ms=3, alpha=0.7)
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    for tick, name in zip(axes.get_yticklabels(), names, strict=True) if not several else ():
        tick.set_color(panel.style(str(name), means[means[panel.y] == name])["color"])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return []


def _limit(axes: Axes, panel: Panel, means: DataFrame, seeds: DataFrame) -> None:
    """Let bars and bands leave the panel where they would flatten what they belong to."""
    points = np.concatenate([frame[panel.y].dropna().to_numpy(dtype=float) for frame in (means, seeds)])
    if "y" in panel.log or not len(points) or f"{panel.y}_low" not in means or np.ptp(points) == 0:
        return
    low, high = (
        np.nanmin([means[f"{panel.y}_low"].min(), *points]),
        np.nanmax([means[f"{panel.y}_high"].max(), *points]),
    )
    reach = np.ptp(points)
    zero = [] if panel.zero is None else [panel.zero]
    bottom, top = min([max(low, points.min() - reach), *zero]), max([min(high, points.max() + reach), *zero])
    axes.set_ylim(bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom))


def _ticks(axes: Axes, panel: Panel, means: DataFrame) -> None:
    assert panel.ticks is not None
    values = sorted(means[panel.x].astype(float).unique())
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([panel.ticks(value) for value in values])
    if "x" in panel.log:
        widen(axes, 0.0)
    if LETTER * sum(len(panel.ticks(value)) + 1 for value in values) * axes.figure.dpi > axes.bbox.width:
        axes.tick_params(axis="x", labelrotation=45)
