"""The small figures at the top of README, for decay, tokenformer and denseformer; README shows them 265 pixels wide."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from pandas import DataFrame

from formerlab.report.claims.render import SIGNS
from formerlab.report.style import BLACK, GREY, HOLLOW, PUBLISHED_GROUND, plot_style

SIZE = (4.2, 4.2)
"""Width and height in inches: more pixels than README shows, for screens with a high resolution."""
TEXT = 13.5
"""Text size in points. At 265 pixels for 4.2 inches, the text is 12 pixels high."""


def overview(title: str, xlabel: str, left: float, ratio: bool = False) -> Callable[[DataFrame], Figure]:
    """Return a function that draws a row per `label` with a point per `series`: `value` and the ends of its interval.

    `_style` names the plot style of a series. Published points are hollow on a tinted background. `left` is the space
    for the labels in inches. A vertical line marks equality: 0, or 1 for a `ratio`, whose axis is logarithmic. The sign
    of the `verdict` of a row, as in README's table, is on the right of the axes.
    """

    def render(rows: DataFrame) -> Figure:
        figure, labels = Figure(SIZE), list(rows["label"].unique())[::-1]
        series, handles = list(rows["series"].unique()), dict[str, Any]()
        width, height, below = *SIZE, 0.68 + 0.25 * (len(series) + ("limit" in rows))
        top = 0.91 - 0.06 * title.count("\n")
        axes = figure.add_axes((left / width, below / height, 0.92 - left / width, top - below / height))
        axes.axvline(float(ratio), color=BLACK, linewidth=1.4, zorder=1)
        for _, points in rows.groupby(["series", "_style"], sort=False):
            name, style_name = points[["series", "_style"]].iloc[0]
            heights = points["label"].map(labels.index).astype(float)
            for at in heights[points["source"].eq("published")]:
                axes.axhspan(at - 0.5, at + 0.5, color=PUBLISHED_GROUND, linewidth=0, zorder=0)
            if rows["label"].duplicated().any():  # series of one row are above each other
                heights += 0.3 * ((len(series) - 1) / 2 - series.index(name))
            style = plot_style(style_name) | {"linestyle": "", "markersize": 9, "elinewidth": 2.8}
            hollow = HOLLOW if points["source"].eq("published").all() else {}
            bars = (points["value"] - points["low"]).fillna(0), (points["high"] - points["value"]).fillna(0)
            handles[name] = *handles.get(name, ()), axes.errorbar(points["value"], heights, xerr=bars, **style | hollow)
        for label, limit in rows.reindex(columns=["label", "limit"]).dropna().to_numpy():
            ends = np.array([-0.5, 0.5]) + labels.index(label)
            handles["needed for ✔"] = (*axes.plot([limit] * 2, ends, "--", color=GREY, linewidth=1.8, zorder=1),)
        for label, verdict in rows[["label", "verdict"]].dropna().drop_duplicates().to_numpy():
            sign = SIGNS.get(verdict.replace(" ", "_"), SIGNS["not_tested"])
            axes.text(1.02, labels.index(label), sign, va="center", transform=axes.get_yaxis_transform(),
                      fontsize=TEXT + 2)  # fmt: skip
        axes.set_yticks(range(len(labels)), labels)
        axes.set(ylim=(-0.6, len(labels) - 0.4))
        if ratio:
            axes.set_xscale("log", base=2)
        else:
            axes.locator_params("x", nbins=4, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(xlabel, loc="right", fontsize=TEXT)
        axes.tick_params(length=0, labelsize=TEXT)
        figure.text(0.01, 0.99, title, va="top", fontsize=TEXT + 1)
        figure.legend(handles.values(), handles, handler_map={tuple: HandlerTuple(None)}, loc="lower left",
                      bbox_to_anchor=(0, 0), borderaxespad=0, handletextpad=0.4, labelspacing=0.3,
                      fontsize=TEXT)  # fmt: skip
        return figure

    return render
