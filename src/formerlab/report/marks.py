"""How a panel draws its rows: points with bars, curves in bands, forests; what is far off; axes that read well."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator
from pandas import DataFrame, Series

from formerlab.report.style import BLACK, LETTER, PUBLISHED_GROUND, PUBLISHED_INK, Label, label_at_edge, loss_axis

if TYPE_CHECKING:
    from formerlab.report.panel import Panel

MANY = 3
"""Far values that are said one by one; of more the range."""
_LEAST_FACTOR = 2.5
"""The ends of a logarithmic axis with few ticks are at least this factor apart."""


def mark(axes: Axes, panel: "Panel", rows: DataFrame) -> None:
    """Draw the rows of one panel."""
    rows = rows.dropna(subset=panel.x) if panel.kind == "forest" else rows
    seeds = rows[rows["part"].eq("seed")] if "part" in rows else rows[:0]
    means = rows.drop(seeds.index)
    levels = means[means[panel.x].isna()]
    means = means.drop(levels.index)
    for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if letter in panel.log and (means[getattr(panel, letter)].dropna() > 0).all():
            _logarithmic(axis, means[getattr(panel, letter)])
    labels = {"line": _lines, "band": _bands, "forest": _forest}[panel.kind](axes, panel, means, seeds)
    labels += [_level(axes, panel, str(name), level) for name, level in levels.groupby(panel.by, sort=False)]
    if panel.far or (panel.kind != "forest" and "y" not in panel.log):
        _limit(axes, panel, means, rows)
    _ticks(axes, panel, means)
    if panel.zero is not None:
        (axes.axvline if panel.kind == "forest" else axes.axhline)(panel.zero, color=BLACK, linewidth=0.9, zorder=1)
    axes.set(xlabel=panel.xlabel if isinstance(panel.xlabel, str) else panel.xlabel(rows), ylabel=panel.ylabel)
    if rows["source"].eq("published").all():
        axes.set_facecolor(PUBLISHED_GROUND)
    if panel.perplexity:
        loss_axis(axes)
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
        axis.set_major_formatter(lambda value, _: f"{value:g}" if value < 1e5 else f"{value:.3g}".replace("e+", "e"))


def _level(axes: Axes, panel: "Panel", name: str, level: DataFrame) -> Label:
    """Draw a value that belongs to no x as a line over all of them, in the band of its interval."""
    value, published = float(level[panel.y].iloc[0]), level["source"].eq("published").all()
    colour = PUBLISHED_INK if published else panel.look(name, level)["color"]
    axes.axhline(value, color=colour, linestyle="-." if published else "--", linewidth=1)
    if level.get(f"{panel.y}_low", Series([np.nan])).notna().all():
        axes.axhspan(level[f"{panel.y}_low"].iloc[0], level[f"{panel.y}_high"].iloc[0], color=colour, alpha=0.15, lw=0)
    words = f"PUBLISHED, not ours: {value:+.3f}, {name}" if published else name
    return Label(axes.get_xlim()[1], value, words, colour)


def _ends(points: DataFrame, y: str) -> Any:
    """Return how far both ends of an interval are from its mean; 0 where there is none."""
    if f"{y}_low" not in points:
        return None
    both = np.array([points[y] - points[f"{y}_low"], points[f"{y}_high"] - points[y]], dtype=float)
    return np.maximum(np.nan_to_num(both), 0)  # an interval of equal values may be off in its last digit


def _moved(panel: "Panel", points: DataFrame, means: DataFrame, name: object, aside: float = 0.0) -> Series:
    """Return the x of points, moved sideways so that no series hides another that has the same x, or nearly."""
    away = np.log if "x" in panel.log else np.asarray
    found, x = away(means[panel.x].astype(float)), away(points[panel.x].astype(float))
    span = float(np.ptp(found)) or 1.0
    beside = means.groupby(np.round(found / (0.012 * span)), sort=False)[panel.by].unique()
    most, gaps = int(beside.map(len).max()), [gap for gap in np.diff(np.unique(found)) if gap > 0.03 * span]
    step = min(0.02 * span, 0.7 * min(gaps, default=span) / most)
    series = [list(beside.get(near, [name])) for near in np.round(x / (0.012 * span))]
    order = [names.index(name) - (len(names) - 1) / 2 if name in names else 0.0 for names in series]
    moved = x + step * (np.array(order) + aside)
    return Series(np.exp(moved) if "x" in panel.log else moved, points.index)


def _lines(axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame) -> list[Label]:
    labels = []
    for name, points in means.groupby(panel.by, sort=False):
        points = points.sort_values(panel.x, kind="stable")
        style, x, y = panel.look(str(name), points), _moved(panel, points, means, name), points[panel.y]
        axes.errorbar(x, y, _ends(points, panel.y), _ends(points, panel.x), capsize=2, elinewidth=0.9, **style)
        own = seeds[seeds[panel.by] == name]
        axes.plot(_moved(panel, own, means, name, -0.35), own[panel.y], ".", color=style["color"], ms=3, alpha=0.7)
        for column, shown in ((panel.ring, {"marker": "o", "markersize": 11}), (panel.empty, {})):
            if column:
                some = points[column].fillna(value=False).astype(bool)
                ground = "none" if column == panel.ring else "white"
                own_style = style | {"linestyle": "", "markerfacecolor": ground, "zorder": 3} | shown
                axes.plot(x[some], y[some], **own_style)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), style["color"]))
    return labels


def _bands(axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame) -> list[Label]:
    labels = []
    for name, points in means.groupby(panel.by, sort=False):
        points = points.sort_values(panel.x, kind="stable")
        style, x, y = panel.look(str(name), points), points[panel.x], points[panel.y]
        axes.plot(x, y, markersize=3.5, markevery=max(1, len(points) // 8), label=str(name), **style)
        if f"{panel.y}_low" in points:
            ends = points[f"{panel.y}_low"].astype(float), points[f"{panel.y}_high"].astype(float)
            axes.fill_between(x, *ends, color=style["color"], alpha=0.15, linewidth=0)
        for _, own in seeds[seeds[panel.by] == name].groupby("seed") if len(seeds) else ():
            axes.plot(own[panel.x], own[panel.y], color=style["color"], linewidth=0.5, alpha=0.6)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), style["color"]))
    return labels


def _forest(axes: Axes, panel: "Panel", means: DataFrame, seeds: DataFrame) -> list[Label]:
    names, series = list(means[panel.y].unique())[::-1], list(means[panel.by].unique())
    several = panel.by != panel.y and len(series) > 1
    for name, points in means.groupby(panel.by, sort=False):
        style, own = panel.look(str(name), points), seeds[seeds[panel.by] == name]
        aside = 0.22 * ((len(series) - 1) / 2 - series.index(name)) if several else 0.0
        heights = [names.index(one) + aside for one in points[panel.y]]
        axes.errorbar(points[panel.x], heights, xerr=_ends(points, panel.x), capsize=2, **style | {"linestyle": ""})
        below = [names.index(one) + aside - (0.1 if several else 0.25) for one in own[panel.y]]
        axes.plot(own[panel.x], below, ".", color=style["color"], ms=3, alpha=0.7)
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    for tick, name in zip(axes.get_yticklabels(), names, strict=True) if panel.by == panel.y else ():
        tick.set_color(panel.look(str(name), means[means[panel.y] == name])["color"])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="y")
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    return []


def _limit(axes: Axes, panel: "Panel", means: DataFrame, known: DataFrame) -> None:
    """Let values that are far off, and bars that would flatten what they belong to, leave the panel."""
    across = panel.kind == "forest"
    column = panel.x if across else panel.y
    values = known[column].dropna().astype(float)
    start = values.min() if panel.zero is None else panel.zero
    settled = known[panel.x] >= known[panel.x].median() if panel.kind == "band" else values.index.notna()
    bound = _bound((values - start).abs(), panel.far, settled)
    near, gone = values[(values - start).abs() <= bound], means[(means[column] - start).abs() > bound]
    ends = [means.drop(gone.index)[f"{column}{end}"].dropna() for end in ("_low", "_high") if f"{column}{end}" in means]
    if near.nunique() < 2 or (gone.empty and not ends):
        return
    shown, reach, zero = np.concatenate([near, *ends]), np.ptp(near), [] if panel.zero is None else [panel.zero]
    bottom, top = max(shown.min(), near.min() - reach), min(shown.max(), near.max() + reach)
    bottom, top = min([bottom, *zero]), max([top, *zero])
    words = _far_in_words(panel, gone, column) if not across else []
    room = 0.06 * (top - bottom)
    (axes.set_xlim if across else axes.set_ylim)(bottom - room, top + room + 1.6 * room * len(words))
    axes.text(0.84, 0.985, "\n".join(words), ha="right", va="top", transform=axes.transAxes, color=BLACK)
    for name, value in gone[[panel.y, column]].itertuples(index=False, name=None) if across else ():
        colour = panel.look(str(name), gone[gone[panel.y] == name])["color"]
        height = [label.get_text() for label in axes.get_yticklabels()].index(str(name))
        axes.text(top, height, f"{value:.2g} \N{BLACK RIGHT-POINTING TRIANGLE}", ha="right", va="center", color=colour)


def _bound(away: Series, far: float, settled: Any) -> float:
    """Return the largest distance from the start that is near.

    What lies beyond it is `far` times as far as all nearer values and as most of all; of curves, `far` times as far as
    any value of the second half.
    """
    if not far or away.empty:
        return np.inf
    if not settled.all():
        return float(far * away[settled].max())
    order = away.sort_values()
    nearer = order.shift()
    jumps = nearer[(order > far * nearer) & (order > order.median())]
    return float(jumps.min()) if len(jumps) else np.inf


def _far_in_words(panel: "Panel", gone: DataFrame, column: str) -> list[str]:
    up = "\N{BLACK UP-POINTING TRIANGLE}"
    if len(gone) > MANY:
        return [f"{len(gone)} points: {gone[column].min():.3g} to {gone[column].max():.3g} {up}"]
    write = panel.ticks or "{:g}".format
    return [f"{name} at {write(x)}: {value:.3g} {up}"
            for name, x, value in gone[[panel.by, panel.x, column]].itertuples(index=False, name=None)]  # fmt: skip


def _ticks(axes: Axes, panel: "Panel", means: DataFrame) -> None:
    if panel.ticks is None:
        return
    values = sorted(means[panel.x].astype(float).unique())
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([panel.ticks(value) for value in values])
    low, high = axes.get_xlim()
    if "x" in panel.log and high < _LEAST_FACTOR * low:  # else the only two ticks would stand at the very ends
        spread = (_LEAST_FACTOR * low / high) ** 0.5
        axes.set_xlim(low / spread, high * spread)
    if LETTER * sum(len(panel.ticks(value)) + 1 for value in values) * axes.figure.dpi > axes.bbox.width:
        axes.tick_params(axis="x", labelrotation=45)
