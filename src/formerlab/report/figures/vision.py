"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly
from formerlab.report.rates import draw as draw_rates
from formerlab.report.rates import searches
from formerlab.report.runs import n_seeds
from formerlab.report.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
    look,
    mark_published,
    widen,
)
from formerlab.report.vision import NAMES, accuracies, by_run, published_accuracies
from formerlab.results.read import Results

STUDY = "vision"
GROUPS = {
    "sizes": ("Table 2", BLACK, ("vit", "vit-wider", "tokenformer-matched", "tokenformer")),
    "scores": ("Table 4", BLUE, ("score-exp-l1", "score-gelu-l1", "score-gelu-l2")),
    "norms": ("Table 5", GREEN, ("norm-bias", "norm-gain-bias")),
    "growth": ("", ORANGE, ("tokenformer-small", "tokenformer-short", "grown-random-sqrt", "grown-zero-keep")),
    "depth": ("", PURPLE, ("vit-dwa", "tokenformer-dwa")),
}
"""Published table, colour and runs of each group."""

_COLUMNS = (
    "source",
    "group",
    "run",
    "model",
    "top1_percent",
    "top1_percent_low",
    "top1_percent_high",
    "seeds",
    "diverged",
)


def accuracy_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and a row per published value, by group."""
    measured = accuracies(results, runs)
    frames = []
    if len(measured):
        groups = {run: group for group, (_, _, runs) in GROUPS.items() for run in runs}
        ours = by_run(measured)
        frames.append(ours.assign(group=ours["run"].map(groups).fillna("other")))
    for group, (place, _, _) in GROUPS.items():
        if place:
            frames.append(published_accuracies(place).assign(source="published", group=group))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(_COLUMNS))


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw a line per run, ours left and the published right."""
    ours, theirs = (data[data["source"] == source] for source in ("ours", "published"))
    seeds = int(ours["seeds"].max())
    spread = "bars: 95 % Student t interval over seeds" if seeds > 1 else "one seed: no interval"
    notes = [f"{n_seeds([seeds])} per point; {spread}. Published: one run each, ImageNet-1K."]
    diverged = ours[ours["diverged"] > 0]["run"]
    if len(diverged):
        notes.append(f"Diverged, counted as a uniform guess: {', '.join(diverged)}.")
    figure, (left, right) = canvas([3.4, 2.6], notes, height=0.27 * max(len(ours), len(theirs)) + 0.4, right=[4.2, 3.2])
    _panel(left, ours, "Ours")
    _panel(right, theirs, "")
    mark_published(right, "ImageNet-1K")
    return figure


def _panel(axes: Axes, rows: DataFrame, title: str) -> None:
    order = {run: place for place, run in enumerate(NAMES)}
    colours = {group: colour for group, (_, colour, _) in GROUPS.items()}
    rows = rows.assign(
        place=rows["run"].map(order).fillna(99), rank=rows["group"].map({g: i for i, g in enumerate(GROUPS)})
    )
    rows = rows.sort_values(["rank", "place"], ignore_index=True)
    heights = np.arange(len(rows))[::-1]
    for height, row in zip(heights, rows.to_dict("records"), strict=True):
        value, colour = row["top1_percent"], colours.get(row["group"]) or look(row["model"].rpartition(" (")[0]).colour
        bar = np.nan_to_num([[value - row["top1_percent_low"]], [row["top1_percent_high"] - value]])
        face = "white" if row["source"] == "published" else colour
        axes.errorbar(value, height, xerr=bar, color=colour, marker="o", markerfacecolor=face, capsize=2, elinewidth=1)
        axes.annotate(
            row["model"], (1.02, height), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, color=colour
        )
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_yticks([])
    axes.set_xlabel("top-1 accuracy (%)")
    if title:
        axes.set_title(title)


vision_accuracy = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Top-1 accuracy on test images of every run, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168). To "
        "see: whether a Tokenformer with the parameters of the ViT reaches it, whether exp is worse than GeLU, and "
        "whether parameters of the norms matter. Right: the published values on ImageNet-1K, single runs: compare "
        "differences, never levels."
    ),
    data=accuracy_data,
    draw=draw_accuracy,
)


_LOOKS = {
    "vit": (BLACK, "o", "ViT"),
    "tokenformer": (BLUE, "s", "Tokenformer, from scratch"),
    "tokenformer-matched": (SKY, "s", "the same with 3/4 of the tokens"),
    "tokenformer-short": (SKY, "D", "from scratch, steps of a stage"),
    "tokenformer-small": (GREY, "v", "a quarter of the tokens"),
    "grown-random-sqrt": (VERMILION, "^", "grown: random keys, tau sqrt(n)"),
    "grown-zero-keep": (GREEN, "P", "grown: zero keys, tau kept"),
}


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run with its error rate."""
    measured = accuracies(results, runs)
    if measured.empty:
        return DataFrame()
    rows = by_run(measured)
    rows = rows[rows["run"].isin(_LOOKS)]
    return rows.assign(
        error_percent=100 - rows["top1_percent"],
        error_percent_low=100 - rows["top1_percent_high"],
        error_percent_high=100 - rows["top1_percent_low"],
    )[["source", "run", "flops_cumulative", "error_percent", "error_percent_low", "error_percent_high", "seeds"]]


def draw_growth(data: DataFrame) -> Figure:
    """Draw a point per run, a line from the parent to what grew from it."""
    seeds = int(data["seeds"].max())
    spread = "bars: 95 % Student t interval over seeds" if seeds > 1 else "one seed: no interval"
    figure, (axes,) = canvas([4.4], [f"{n_seeds([seeds])} per point; {spread}."], right=0.4)
    points = {row["run"]: row for row in data.to_dict("records")}
    labels = []
    for run, row in points.items():
        colour, marker, name = _LOOKS[run]
        x, y = row["flops_cumulative"], row["error_percent"]
        bar = np.nan_to_num([[y - row["error_percent_low"]], [row["error_percent_high"] - y]])
        axes.errorbar(x, y, bar, color=colour, marker=marker, capsize=2, elinewidth=1)
        if run.startswith("grown") and "tokenformer-small" in points:
            start = points["tokenformer-small"]
            axes.plot([start["flops_cumulative"], x], [start["error_percent"], y], color=colour, linewidth=1)
        labels.append(Label(x, y, name, colour))
    axes.set_xscale("log")
    axes.set_xlabel("cumulative training cost (FLOPs)")
    axes.set_ylabel("top-1 error (%)")
    widen(axes, 0.9)
    label_directly(axes, labels, size=7.5)
    return figure


vision_growth = Plot(
    reads=("test.csv", "run.json"),
    runs=("tokenformer*", "grown-*", "vit"),
    caption=(
        "Error on test images against cumulative training cost: Tokenformers that grow, those trained from scratch, "
        "and a ViT. A grown model pays for its parent. To see: growing is worth it where its point lies below and to "
        "the left of the same model from scratch. Nobody has published this for images; the method is that of "
        "Tokenformer (arXiv:2410.23168, section 3.3)."
    ),
    data=growth_data,
    draw=draw_growth,
)


vision_rates = Plot(
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Validation loss at the end of training, in nats per image, against the peak learning rate, for every image "
        "model whose rate was searched: runs that differ in nothing else. To see: each ringed rate has a higher and a "
        "lower one beside it in the grid; where it has not, the foot of the figure says so, and no comparison at that "
        "rate is fair."
    ),
    data=partial(searches, study="vision"),
    draw=draw_rates,
)
