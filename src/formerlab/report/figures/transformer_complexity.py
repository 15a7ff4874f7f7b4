"""Time and memory of the layer types of Table 1 (arXiv:1706.03762) against length and width."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._labels import Label, label_directly
from formerlab.report.figures._style import BLACK, BLUE, GREEN, VERMILION, canvas, widen
from formerlab.results.read import Results

STUDY = "transformer"
READS = ("complexity.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Self-attention, recurrence, convolution and self-attention restricted to a neighbourhood, after Table 1 of "
    "arXiv:1706.03762: counted multiply-adds of the mixing operation and measured time of one call, against length n "
    "and width d. Points are measured, both axes are logarithmic, so a slope is an exponent; the table "
    "transformer_layers has the fitted slopes beside the published ones. To see: self-attention steepest in n, "
    "recurrence and convolution in d, and times that follow the counts only where these are large."
)
_COLOURS = {"self_attention": BLACK, "recurrent": VERMILION, "convolution": BLUE, "restricted": GREEN}
_PANELS = (("n", "multiply_adds"), ("d", "multiply_adds"), ("n", "time_s"), ("d", "time_s"))
_AXES = {"n": "length n", "d": "width d", "multiply_adds": "multiply-adds", "time_s": "time of a call (s)"}


def rows_of(results: Results) -> DataFrame:
    """Return the measured points, once: those of the first run that has them."""
    rows = results.rows("complexity.csv", STUDY)
    if rows.empty:
        return rows
    first = rows.iloc[0]
    chosen: DataFrame = rows[(rows["run"] == first["run"]) & (rows["seed"] == first["seed"])]
    return chosen


def data(results: Results) -> DataFrame:
    """Return one row per layer type, length and width."""
    return rows_of(results).assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw counts and times against length and width."""
    first = data.iloc[0]
    notes = [f"Fastest of several calls on one machine; kernel k = {first['k']}, neighbourhood r = {first['r']}."]
    figure, axes = canvas([2.6] * len(_PANELS), notes, height=2.6, right=1.5, columns=2)
    for panel, (axis, column) in zip(axes, _PANELS, strict=True):
        _draw_panel(panel, data[data["axis"] == axis], axis, column)
    return figure


def _draw_panel(panel: Axes, rows: DataFrame, axis: str, column: str) -> None:
    labels = []
    for name, points in rows.groupby("operation", sort=False):
        points = points.sort_values(axis)
        colour = _COLOURS[str(name)]
        panel.plot(points[axis], points[column], color=colour, marker="o", markersize=3.5)
        end = points.iloc[-1]
        labels.append(Label(end[axis], end[column], str(name).replace("_", "-"), colour))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel(_AXES[axis])
    panel.set_ylabel(_AXES[column])
    ticks = sorted(pd.unique(rows[axis]))
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    widen(panel, 0.05)
    label_directly(panel, labels, size=7.5)
