"""The small figures at the top of README, for decay, tokenformer and denseformer; README shows them 290 pixels wide."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from pandas import DataFrame

from formerlab.report.style import BLACK, GREY, HOLLOW, PUBLISHED_GROUND, plot_style

SIZE = (2.7, 2.5)
"""Width and height in inches."""
TEXT = 8
"""Text size in points. At 290 pixels for 2.7 inches, the text is 12 pixels high."""


def overview(title: str, xlabel: str, left: float, ratio: bool = False) -> Callable[[DataFrame], Figure]:
    """Return a function that draws a row per `label` with a point per `series`: `value` and the ends of its interval.

    `_style` names the plot style of a series. Published points are hollow on a tinted background. `left` is the space
    for the labels in inches. The part of a label up to a colon is left out if the row above has the same. A vertical
    line marks equality: 0, or 1 for a `ratio`, whose axis is logarithmic. The `verdict` of a row is at the right edge,
    and above the interval if the rows are few.
    """

    def render(rows: DataFrame) -> Figure:
        figure, labels = Figure(SIZE), list(rows["label"].unique())[::-1]
        series, handles = list(rows["series"].unique()), dict[str, Any]()
        width, height, below = *SIZE, 0.48 + 0.17 * (len(series) + ("limit" in rows))
        top = 0.9 - 0.05 * title.count("\n")
        axes = figure.add_axes((left / width, below / height, 0.97 - left / width, top - below / height))
        axes.axvline(float(ratio), color=BLACK, linewidth=0.9, zorder=1)
        for _, points in rows.groupby(["series", "_style"], sort=False):
            name, style_name = points[["series", "_style"]].iloc[0]
            heights = points["label"].map(labels.index).astype(float)
            for at in heights[points["source"].eq("published")]:
                axes.axhspan(at - 0.5, at + 0.5, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
            if rows["label"].duplicated().any():  # series of one row are above each other
                heights += 0.3 * ((len(series) - 1) / 2 - series.index(name))
            style = plot_style(style_name) | {"linestyle": "", "markersize": 5, "elinewidth": 1.6}
            hollow = HOLLOW if points["source"].eq("published").all() else {}
            bars = (points["value"] - points["low"]).fillna(0), (points["high"] - points["value"]).fillna(0)
            handles[name] = *handles.get(name, ()), axes.errorbar(points["value"], heights, xerr=bars, **style | hollow)
        for label, limit in rows.reindex(columns=["label", "limit"]).dropna().to_numpy():
            ends = np.array([-0.5, 0.5]) + labels.index(label)
            handles["limit of the claim"] = (*axes.plot([limit] * 2, ends, "--", color=GREY, linewidth=1, zorder=1),)
        above = 10 if len(labels) < 5 else 0
        for label, verdict in rows[["label", "verdict"]].dropna().drop_duplicates().to_numpy():
            axes.annotate(verdict, (0.98, labels.index(label)), (0, above), textcoords="offset points", ha="right",
                          va="center", xycoords=axes.get_yaxis_transform(), fontsize=TEXT)  # fmt: skip
        groups = [label.rpartition(": ")[0] for label in labels]
        again = [group == above for group, above in zip(groups, [*groups[1:], ""], strict=True)]
        names = [label.rpartition(": ")[2] if same else label for label, same in zip(labels, again, strict=True)]
        axes.set_yticks(range(len(labels)), names)
        axes.set(ylim=(-0.6, len(labels) - 0.4))
        if ratio:
            axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(xlabel, loc="right")
        axes.tick_params(length=0, labelsize=TEXT)
        figure.text(0.02, 0.985, title, va="top", fontsize=TEXT + 0.5)
        figure.legend(handles.values(), handles, handler_map={tuple: HandlerTuple(None)}, loc="lower left",
                      bbox_to_anchor=(0, 0), borderaxespad=0, handletextpad=0.4, labelspacing=0.3,
                      fontsize=TEXT)  # fmt: skip
        return figure

    return render
