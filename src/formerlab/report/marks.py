"""Draw the rows of a panel: points with bars, curves in bands, forest plots, heat maps, arrows and axes."""

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation
from pandas import DataFrame, Series

from formerlab.report.style import BLACK, GREY, LETTER, LIMIT_STYLE, MET_GROUND, PUBLISHED_GROUND, Label, ink

if TYPE_CHECKING:
    from formerlab.report.panel import Panel

_LEAST_FACTOR = 2.5
"""The limits of a logarithmic x axis with `ticks` differ by at least this factor."""


def mark(axes: Axes, panel: "Panel", rows: DataFrame, y_colours: Mapping[Any, str]) -> tuple[list[Label], DataFrame]:
    """Draw the rows of one panel. Return the names to write beside it, and the drawn means for `mark_outside`.

    `y_colours` maps each y category to its colour, from top to bottom, for adjacent forest plots that share the y axis.
    It is empty for other panels. The column `_at` has the plotted position after the offset: the x of points,
    or the y of a forest plot. `panel.finish` gets it for points only.
    """
    if panel.kind == "heat":
        shades = LinearSegmentedColormap.from_list("", ["white", panel.plot_style("", rows)["color"]])
        heat(axes, rows, panel.x, panel.y, panel.by, **panel.colours or {"cmap": shades, "vmin": 0.0, "vmax": 1.0})
        panel.finish(axes, rows)
        return [], rows[:0]
    forest = panel.kind == "forest"
    rows = rows.dropna(subset=panel.x) if forest else rows
    seeds = rows_of_seeds(rows)
    means = rows.drop(seeds.index)
    references = means[means[panel.x].isna()]
    means = means.drop(references.index)
    if panel.kind == "line":
        means = means.join(placed := _place_x(panel, means))
        of_mean = means.drop_duplicates([panel.by, panel.x]).set_index([panel.by, panel.x])[[*placed]]
        seeds = seeds.join(of_mean, on=[panel.by, panel.x]).fillna({"_side": -1})
        rows = pd.concat([means, seeds])
    if forest:
        names = list(y_colours or means[panel.y].unique())[::-1]
        means, seeds = _forest_positions(panel, means, seeds[seeds[panel.y].isin(names)], names)
        _forest(axes, panel, means, seeds, names, y_colours)
    labels = [] if forest else _lines(axes, panel, means, seeds)
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in panel.log and (means[getattr(panel, letter)].dropna() > 0).all():
            _logarithmic(axis, means[getattr(panel, letter)])
    labels += [_reference_line(axes, panel, str(name), line) for name, line in references.groupby(panel.by, sort=False)]
    if not forest and "y" not in panel.log:
        _limit(axes, panel, means, rows)
    if rows["source"].eq("published").all():
        axes.set_facecolor(PUBLISHED_GROUND)
    _decorate(axes, panel, means)
    panel.finish(axes, rows)
    return labels if panel.name == "edge" and not forest else [], pd.concat([means, _at_right(axes, panel, references)])


def _at_right(axes: Axes, panel: "Panel", references: DataFrame) -> DataFrame:
    """Return horizontal lines without their intervals, with an x at the right, for `mark_outside`."""
    right = axes.transData.inverted().transform(axes.transAxes.transform((0.85, 0.5)))[0]
    ends = references.filter(regex="_(low|high)$").columns
    return references.assign(**{"_at": right, panel.x: right}, **dict.fromkeys(ends, np.nan))


def _draw_legend(axes: Axes, panel: "Panel", means: DataFrame) -> None:
    """Draw a legend in the upper right of a panel, and extend the y axis so that the legend covers no points."""
    handles, (low, high) = panel.handles(means), axes.get_ylim()
    room = 0.15 * len(handles) * axes.figure.dpi / axes.bbox.height
    axes.set_ylim(low, low + (high - low) / (1 - room))
    axes.legend(handles.values(), handles, loc="upper right", borderaxespad=0.1, labelspacing=0.2, fontsize=7)


def rows_of_seeds(rows: DataFrame) -> DataFrame:
    """Return the rows of single seeds beside their means; empty if there are no means."""
    return rows[rows["seed"].notna()] if "seed" in rows and rows["seed"].isna().any() else rows[:0]


def drawn_marks(panel: "Panel", rows: DataFrame) -> set[str]:
    """Return which marks of intervals and seeds a panel draws: bars, bands, dots (seeds) or thin lines (seeds)."""
    if panel.kind == "heat":
        return set()
    seeds = rows_of_seeds(rows).dropna(subset=[panel.x, panel.y])
    means = rows.drop(rows_of_seeds(rows).index).dropna(subset=panel.y)
    lows = means.reindex(columns=[f"{panel.x}_low", f"{panel.y}_low"]).notna().any(axis=1)
    curves, is_reference = panel.kind == "band", means[panel.x].isna()
    marks = {"bands"} if (lows & (curves | is_reference)).any() else set()
    marks |= {"bars"} if not curves and (lows & ~is_reference).any() else set()
    return marks | ({"thin lines" if curves else "dots"} if len(seeds) else set())


def heat(axes: Axes, rows: DataFrame, x: str, y: str, value: str, **colours: Any) -> AxesImage:
    """Draw the values of a column as the cells of a heat map, with the lowest y at the top, and return the image."""
    grid = rows.pivot(index=y, columns=x, values=value)
    (low, high), (left, right) = ((int(side.min()), int(side.max())) for side in (grid.index, grid.columns))
    grid = grid.reindex(index=range(low, high + 1), columns=range(left, right + 1)).astype(float)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    return axes.imshow(grid, aspect="auto", extent=(left - 0.5, right + 0.5, high + 0.5, low - 0.5), **colours)


def _logarithmic(axis: Axis, values: Series) -> None:
    """Make an axis logarithmic. Ranges below a factor of 60 have ticks at 1, 2 and 5 times powers of ten; ranges below
    a factor of 4 have linear ticks.

    Labels have no superscripts, which would be too small to read.
    """
    axis._set_axes_scale("log")  # type: ignore[attr-defined]
    axis.set_minor_formatter(NullFormatter())
    if values.max() < 60 * values.min():
        few = values.max() < 4 * values.min()
        axis.set_major_locator(MaxNLocator(4) if few else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if 1e3 <= value < 1e6 else
                             f"{value:.3g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-"))  # fmt: skip


def _reference_line(axes: Axes, panel: "Panel", name: str, rows: DataFrame) -> Label:
    """Draw a value without an x as a horizontal line, with its interval as a band, and return its label."""
    first, colour = rows.iloc[0], panel.plot_style(name, rows)["color"]
    axes.axhline(first[panel.y], color=colour, linestyle="--", linewidth=1)
    if pd.notna(first.get(f"{panel.y}_low")):
        axes.axhspan(first[f"{panel.y}_low"], first[f"{panel.y}_high"], color=colour, alpha=0.15, lw=0)
    return Label(axes.get_xlim()[1], first[panel.y], name, colour)


def _place_x(panel: "Panel", means: DataFrame) -> DataFrame:
    """Return x positions as `_at`, and as `_side` the side (-1: left, 1: right) of the dots of seeds.

    Series whose points are joined and the first of the other series stay at their x. Other series at nearly the same x
    are moved aside if their bars overlap.
    """
    ends = [end for kind in ("_low", "_high", "_pooled_low", "_pooled_high") if (end := f"{panel.y}{kind}") in means]
    placed = DataFrame({"_at": means[panel.x].astype(float), "_side": -1})
    if not ends or means[ends].isna().all(axis=None):
        return placed
    to_axis, from_axis = (np.log, np.exp) if "x" in panel.log else (np.asarray, np.asarray)
    if panel.apart:
        number, count = means[panel.by].factorize()[0], means[panel.by].nunique()
        placed["_at"] = from_axis(to_axis(placed["_at"]) + panel.apart * (number - (count - 1) / 2))
        return placed.assign(_side=np.where(number < count / 2, -1, 1))
    x, bars = Series(to_axis(placed["_at"]), means.index), means[[panel.y, *ends]].astype(float)
    low, high, span = bars.min(axis=1), bars.max(axis=1), float(np.ptp(x)) or 1.0
    lines = {name: panel.plot_style(str(name), points)["linestyle"] for name, points in means.groupby(panel.by)}
    joined = means.groupby(panel.by)[panel.x].transform("nunique").gt(1) & means[panel.by].map(lines).ne("")
    for _, marks in means.groupby(np.round(x / (0.012 * span)), sort=False):
        moved, previous_marks = 0, list[Any]()
        for nth, at in enumerate(marks.index[np.argsort(~joined[marks.index], kind="stable")]):
            if not joined[at] and (low[at] <= high[previous_marks]).mul(high[at] >= low[previous_marks]).any():
                moved += 1
                placed.loc[at, "_at"] = from_axis(x[at] + 0.035 * span * ((moved + 1) // 2) * (1 if moved % 2 else -1))
            placed.loc[at, "_side"] = 1 if nth % 2 else -1
            previous_marks.append(at)
    return placed


def _plot(axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame, x: str, y: str) -> None:
    """Draw the means of every series with their intervals, and their seeds, as one plot of seaborn.

    `x` and `y` are the columns with the positions; the ends of intervals are in the columns that the panel names.
    """
    named = {str(name): points for name, points in means.groupby(panel.by, sort=False)}
    styles = {name: panel.plot_style(name, points) for name, points in named.items()}
    means, seeds = (rows.assign(_series=rows[panel.by].astype(str)) for rows in (means, seeds))
    seeds, shared = seeds[seeds["_series"].isin(named)], {"x": x, "y": y, "legend": False}
    plot = so.Plot().scale(color=so.Nominal({name: style["color"] for name, style in styles.items()}))
    bars = so.Band(alpha=0.15) if panel.kind == "band" else so.Range(linewidth=1.1)
    for (axis, column), (kind, bar) in product(
        (("x", panel.x), ("y", panel.y)), (("_pooled", so.Range(linewidth=4.5, alpha=0.35)), ("", bars))
    ):
        low, high = f"{column}{kind}_low", f"{column}{kind}_high"
        if low in means and means[low].notna().any():
            span = {f"{axis}min": low, f"{axis}max": high, "orient": "xy".replace(axis, "")}
            plot = plot.add(bar, data=means.dropna(subset=low), color="_series", **shared, **span)
    size = 3.5 if panel.kind == "forest" else 4.5  # a larger mark hides short bars
    # A layer per series, since seaborn tries all combinations of several mapped properties, which takes minutes.
    for name in sorted(named, key=lambda name: styles[name]["linestyle"] == "--"):  # draw dashed lines on top
        style, points = styles[name], named[name]
        lines: Any = points[panel.unit].factorize()[0] if panel.unit else 0
        if panel.kind == "forest" or style["linestyle"] == "":  # one group per point: not connected
            lines = range(len(points))
        curve = so.Line(color=style["color"], marker=style["marker"], linestyle=style["linestyle"] or "-",
                        fillcolor=style.get("markerfacecolor", style["color"]), linewidth=1.4,
                        pointsize=size + 2 * (style["marker"] == "*"), edgewidth=1)  # fmt: skip
        plot = plot.add(curve, data=points.assign(_line=lines), group="_line", **shared)
    if len(seeds) and panel.kind == "band":
        plot = plot.add(so.Line(linewidth=0.5, alpha=0.6), data=seeds, color="_series", group="seed", **shared)
    dots = seeds.groupby(seeds.get("_side", Series(0, seeds.index))) if panel.kind != "band" else ()
    for _, of_side in dots:
        plot = plot.add(so.Dots(marker=".", pointsize=3, fillalpha=0.7), data=of_side, color="_series", **shared)
    plot.on(axes).plot()
    drawn = [points for points in axes.collections if isinstance(points, PathCollection)]
    for (side, _), collection in zip(dots, drawn, strict=True):  # beside the bars, which would hide the dots
        shift = ScaledTranslation(0.06 * float(str(side)), 0, axes.figure.dpi_scale_trans)
        collection.set_offset_transform(axes.transData + shift)
    axes.set(
        xlabel="", ylabel="", xscale="linear", yscale="linear"
    )  # replace seaborn's unnamed scales, because `_forest` tests for the name "linear"


def _lines(axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame) -> list[Label]:
    """Draw points with bars and their seeds as dots, or curves in bands and their seeds as thin lines.

    Return one label per series, at its last point.
    """
    measured = means.dropna(subset=panel.y)  # the last row of a series may be a diverged learning rate, without a value
    if measured.empty:
        return []
    at = "_at" if panel.kind == "line" else panel.x
    _plot(axes, panel, measured, seeds, at, panel.y)
    for line in axes.get_lines() if panel.kind == "band" else ():  # a marker on every point hides the curve
        line.set_markevery(max(1, np.size(line.get_xdata()) // 8))
    labels = []
    for name, points in measured.sort_values(at, kind="stable").groupby(panel.by, sort=False):
        style = panel.plot_style(str(name), points)
        labels.append(Label(points[at].iloc[-1], points[panel.y].iloc[-1], str(name), style["color"]))
    return labels


def _forest_positions(
    panel: "Panel", means: DataFrame, seeds: DataFrame, names: list[Any]
) -> tuple[DataFrame, DataFrame]:
    """Add the heights of means and seeds as `_at`. The rows of the plot are 1 apart; the series that share a row are
    offset.
    """
    order, heights = list(means[panel.by].unique()), {}
    for name, points in means.groupby(panel.y):
        series = sorted(points[panel.by].unique(), key=order.index)
        for number, line in enumerate(series):
            apart = 0.28 if len(series) == 2 else 0.22
            at = names.index(name) + apart * ((len(series) - 1) / 2 - number)
            heights[name, line] = at, at - (apart / 2 if len(series) > 1 else 0.25)
    keys = (zip(rows[panel.y], rows[panel.by], strict=True) for rows in (means, seeds))
    at_means, at_seeds = ([heights.get(key, (np.nan, np.nan)) for key in keys_of_rows] for keys_of_rows in keys)
    return means.assign(_at=[at for at, _ in at_means]), seeds.assign(_at=[at for _, at in at_seeds])


def _forest(
    axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame, names: list[Any], y_colours: Mapping[Any, str]
) -> None:
    """Draw a forest plot with a row per y category; `names` has the categories from bottom to top."""
    if len(means):
        _plot(axes, panel, means, seeds, panel.x, "_at")
    published = means[means["source"].eq("published")]
    alone = set(published[panel.y]) - set(means.drop(published.index)[panel.y])
    _shade_rows(axes, panel, means, names, alone)
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    colours = y_colours or {name: panel.plot_style(str(name), rows)["color"] for name, rows in means.groupby(panel.by)}
    for name, tick in zip(names, axes.get_yticklabels(), strict=True):
        if panel.by == panel.y or name in alone:
            tick.set_color(GREY if name in alone else ink(colours[name]))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="y")
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        plain = partial(np.format_float_positional, trim="-")
        axes.xaxis.set_major_formatter(lambda value, _: plain(round(value, 9)).replace("-", "\N{MINUS SIGN}"))


def _shade_rows(axes: Axes, panel: "Panel", means: DataFrame, names: list[Any], alone: set[Any]) -> None:
    """Draw the ground of published values, the limits of claims, and the ground of the values of ours that meet them.

    `alone` has the rows that only published values have.
    """
    published = means[means["source"].eq("published")]
    bottoms = {name: names.index(name) - 0.45 for name in names}  # of the ground of our marks
    ours = means.drop(published.index).groupby(panel.y)["_at"].min().to_dict()
    for name, highest in published.groupby(panel.y)["_at"].max().items():
        bottom, top = names.index(name) - 0.5, names.index(name) + 0.5
        if name not in alone:
            bottom, top = bottom + 0.05, highest + 0.3 * (ours[name] - highest)
            bottoms[name] = top
        axes.axhspan(bottom, top, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
    limits = means.reindex(columns=[panel.y, f"{panel.x}_limit", f"{panel.x}_met"])
    for name, limit, met in limits.dropna(subset=f"{panel.x}_limit").to_numpy():
        rows = names.index(name) - 0.45, names.index(name) + 0.45
        ends = [end for end in (limit, met) if np.isfinite(end)]
        axes.vlines(ends, *rows, color="white", linewidth=3, zorder=1.5)  # covers a zero line at the same place
        axes.vlines(ends, *rows, **LIMIT_STYLE, zorder=1.6)
        if pd.notna(met):
            shown = axes.get_xlim()
            axes.fill_betweenx(
                (bottoms[name], rows[1]), limit, np.clip(met, -1e6, 1e6), color=MET_GROUND, linewidth=0, zorder=-1
            )
            axes.set_xlim(shown)


def embolden_claims(axes: Axes, rows: DataFrame) -> None:
    """Make the labels of the rows with a verdict bold (columns `_label` and `verdict`)."""
    claimed = {*rows.dropna(subset="verdict")["_label"]}
    for text in axes.get_yticklabels():
        text.set_fontweight("bold" if text.get_text() in claimed else "normal")


def _limit(axes: Axes, panel: "Panel", means: DataFrame, rows: DataFrame) -> None:
    """Set the y limits with a margin of 6 % of the range. Very long bars are cut; `mark_outside` marks them."""
    values, sides = rows[panel.y].dropna().astype(float), ("_low", "_high", "_pooled_low", "_pooled_high")
    ends = [means[end].dropna() for side in sides if (end := f"{panel.y}{side}") in means]
    if values.nunique() < 2 or not ends:
        return
    with_ends, reach = np.concatenate([values, *ends]), np.ptp(values)
    bottom, top = np.clip([with_ends.min(), with_ends.max()], values.min() - reach, values.max() + reach)
    if panel.zero is not None:
        bottom, top = min(bottom, panel.zero), max(top, panel.zero)
    margin = 0.06 * (top - bottom)
    axes.set_ylim(bottom - margin, top + margin)


def mark_outside(axes: Axes, panel: "Panel", means: DataFrame) -> None:
    """Mark values and ends of intervals beyond the limits with arrows (`arrow_outwards`). A curve has at most one arrow
    at each end of the axis, for its furthest value. Call this when the limits are final.
    """
    across, at = panel.kind == "forest", panel.x if panel.kind == "band" else "_at"
    column, limits = (panel.x, axes.get_xlim()) if across else (panel.y, axes.get_ylim())
    outside = []
    for name, points in means.dropna(subset=[panel.x, panel.y]).groupby(panel.by, sort=False):
        colour = panel.plot_style(str(name), points)["color"]
        for side, sign, limit in (("_low", -1, min(limits)), ("_high", 1, max(limits))):
            columns = [end for kind in ("_pooled", "") if (end := f"{column}{kind}{side}") in points]
            furthest = points[columns].mul(sign).max(axis=1).mul(sign) if columns else points[column]
            values = points[column].where(sign * points[column] > sign * limit, furthest).astype(float)
            values = values[sign * values > sign * limit]
            if panel.kind == "band":
                values = values[sign * values == (sign * values).max()][:1]
            positions = points.loc[values.index, at].astype(float)
            outside += [(sign, position, value, colour) for position, value in zip(positions, values, strict=True)]
    previous, length = (0, -np.inf), 0
    for sign, position, value, colour in sorted(outside, reverse=not across):  # the last of several arrows is short
        point = (value, position) if across else (position, value)
        inches = axes.transData.transform(point)[int(across)] / axes.figure.dpi
        near = sign == previous[0] and abs(inches - previous[1]) < (0.12 if across else 0.35)
        length = length + 1 if near else 0
        arrow_outwards(axes, position, value, colour, across=across, length=length)
        previous = sign, inches


_OUTWARDS = "outwards"


def hidden_marks(figure: Figure) -> list[str]:
    """Return the title of each panel with a point, bar or curve outside its axes that has no arrow (`arrow_outwards`).

    Marks with `clip_on=False` are visible there. Lines with the gid `guide` are meant to leave the panel.
    """
    hidden = list[str]()
    for axes in figure.axes:
        arrows = [axes.transData.transform(text.xy) for text in axes.texts if text.get_gid() == _OUTWARDS]  # type: ignore[attr-defined]
        marks = [line.get_transform().transform(line.get_xydata()) for line in axes.lines
                 if line.get_clip_on() and line.get_gid() != "guide"]  # fmt: skip
        for marked in (collection for collection in axes.collections if collection.get_clip_on()):
            if isinstance(marked, PathCollection):
                marks += [*marked.get_offset_transform().transform(marked.get_offsets())[:, None]]
            elif isinstance(marked, LineCollection):
                marks += [marked.get_transform().transform(segment) for segment in marked.get_segments()]
        ends = np.array([[axes.bbox.x0, axes.bbox.y0], [axes.bbox.x1, axes.bbox.y1]])
        for points, (along, sign) in product(marks, ((0, -1), (0, 1), (1, -1), (1, 1))):
            edge = ends[int(sign > 0), along]
            beyond = points[sign * points[:, along] > sign * edge + 1.0, 1 - along]
            close = [abs(at[along] - edge) < 1 and beyond.min() - 3 < at[1 - along] < beyond.max() + 3
                     for at in arrows if len(beyond)]  # fmt: skip
            hidden += [axes.get_title(loc="left") or axes.get_title()] * (len(beyond) > 0 and not any(close))
    return list(dict.fromkeys(hidden))


def arrow_outwards(axes: Axes, at: float, value: float, colour: str, *, across: bool = False, length: int = 0) -> None:
    """Draw an arrow at the edge of the panel, labelled with `value`, which is beyond the axis limits. The value is a y
    value and `at` its x position; with `across`, the value is an x value and `at` its y position. Arrows side by side
    have different lengths (0, 1, ...), so that their labels do not overlap.
    """
    low, high = sorted(axes.get_xlim() if across else axes.get_ylim())
    sign, edge = (1, high) if value > high else (-1, low)
    inwards = -sign * (12 + (22 if across else 9) * length)
    upwards, beside = ("top" if sign > 0 else "bottom"), ("right" if sign > 0 else "left")
    fraction = (axes.transData.transform((at, edge))[0] - axes.bbox.x0) / axes.bbox.width
    # Near the right edge, the label is left of the arrow, so that it does not cover the line.
    inside = "right" if fraction > 0.88 else "left"
    start = {"left": 0.0, "right": 1.0}
    point, shift, sides, begin = (
        ((edge, at), (inwards, 0), {"ha": beside, "va": "center"}, (start[beside], 0.5))
        if across
        else ((at, edge), (0, inwards), {"ha": inside, "va": upwards}, (start[inside], 0.5))
    )
    axes.annotate(f"{value:.3g}".replace("-", "\N{MINUS SIGN}"), point, shift, textcoords="offset points",
                  color=ink(colour), fontsize=7, annotation_clip=False, gid=_OUTWARDS, **sides,
                  bbox={"color": "white", "alpha": 0.7, "pad": 0.2},
                  arrowprops={"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "relpos": begin},
                  )  # fmt: skip


def _decorate(axes: Axes, panel: "Panel", means: DataFrame) -> None:
    """Draw the optional elements of a panel: the reference line, the legend inside the panel, and ticks at the values
    of x.
    """
    if panel.zero is not None:
        (axes.axvline if panel.kind == "forest" else axes.axhline)(panel.zero, color=BLACK, linewidth=0.9, zorder=1)
    if panel.name == "inside":
        _draw_legend(axes, panel, means)
    if panel.ticks is None:
        return
    values = sorted(means[panel.x].astype(float).unique())
    words = [panel.ticks(value) for value in values]
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    width = LETTER * sum(len(word) + 1 for word in words) * axes.figure.dpi
    every = math.ceil(width / axes.bbox.width)  # label every k-th tick, so that the labels fit
    axes.set_xticklabels([word if k % every == 0 else "" for k, word in enumerate(words)])
    low, high = axes.get_xlim()
    if "x" in panel.log and high < _LEAST_FACTOR * low:  # two ticks would otherwise be at the very ends
        spread = (_LEAST_FACTOR * low / high) ** 0.5
        axes.set_xlim(low / spread, high * spread)
