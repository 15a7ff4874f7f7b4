"""Growth on images: error against cumulative training cost, published nowhere (method of arXiv:2410.23168, 3.3)."""

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._labels import Label, label_directly
from formerlab.report.figures._style import BLACK, BLUE, GREEN, GREY, SKY, VERMILION, canvas, n_seeds, widen
from formerlab.report.figures._vision import accuracies, by_run
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("tokenformer*", "grown-*", "vit")
CAPTION = (
    "Error on test images against cumulative training cost: Tokenformers that grow, those trained from scratch, and a "
    "ViT. A grown model pays for its parent. To see: growing is worth it where its point lies below and to the left of "
    "the same model from scratch. Nobody has published this for images; the method is that of Tokenformer "
    "(arXiv:2410.23168, section 3.3)."
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


def data(results: Results) -> DataFrame:
    """Return a row per run with its error rate."""
    measured = accuracies(results, RUNS)
    if measured.empty:
        return DataFrame(columns=["source"])
    rows = by_run(measured)
    rows = rows[rows["run"].isin(_LOOKS)]
    return rows.assign(
        error_percent=100 - rows["top1_percent"],
        error_percent_low=100 - rows["top1_percent_high"],
        error_percent_high=100 - rows["top1_percent_low"],
    )[["source", "run", "flops_cumulative", "error_percent", "error_percent_low", "error_percent_high", "seeds"]]


def draw(data: DataFrame) -> Figure:
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
