"""Top-1 accuracy of every run of the vision study, beside Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._style import BLACK, BLUE, GREEN, ORANGE, PURPLE, canvas, mark_published, n_seeds
from formerlab.report.figures._vision import NAMES, accuracies, by_run, published_accuracies
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("*",)
CAPTION = (
    "Top-1 accuracy on test images of every run, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168). To see: "
    "whether a Tokenformer with the parameters of the ViT reaches it, whether exp is worse than GeLU, and whether "
    "parameters of the norms matter. Right: the published values on ImageNet-1K, single runs: compare differences, "
    "never levels."
)

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


def data(results: Results) -> DataFrame:
    """Return a row per run and a row per published value, by group."""
    measured = accuracies(results, RUNS)
    frames = []
    if len(measured):
        groups = {run: group for group, (_, _, runs) in GROUPS.items() for run in runs}
        ours = by_run(measured)
        frames.append(ours.assign(group=ours["run"].map(groups).fillna("other")))
    for group, (place, _, _) in GROUPS.items():
        if place:
            frames.append(published_accuracies(place).assign(group=group))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(_COLUMNS))


def draw(data: DataFrame) -> Figure:
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
        value, colour = row["top1_percent"], colours.get(row["group"], BLACK)
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
