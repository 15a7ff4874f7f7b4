"""Learned mixing weights (DenseFormer, arXiv:2402.02622, Fig 5 and 8)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.figures._depth import at_last_step
from formerlab.report.figures._runs import DENSEFORMER, variant
from formerlab.report.figures._style import canvas, n_seeds
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("depth.csv", "run.json")
RUNS = ("dwa-*",)
CAPTION = (
    "Mixing weights alpha that DenseFormer learned, after Fig. 5 of arXiv:2402.02622: row i is the average taken "
    "after block i, column j the source X_j, and X_0 the embedding. For each dilation and period the deepest model "
    "is shown, as the mean over seeds. At the start of training the diagonal is 1 and all else 0. To see, if the "
    "pattern of the paper appears: weight on the diagonal and just beside it, a column at X_0 that is positive "
    "early and negative late, and a triangle of large weights over the last blocks. Colours are linear between "
    "-0.05 and 0.05, logarithmic beyond."
)

_LINEAR = 0.05
"""Weights below this are drawn on a linear scale, as in the paper."""


def data(results: Results) -> DataFrame:
    """Return mean and spread over seeds of every weight of the deepest run of each dilation and period."""
    rows = at_last_step(results.rows("depth.csv", STUDY, RUNS))
    if rows.empty:
        return DataFrame(columns=["source"])
    runs = results.runs(STUDY, RUNS).drop_duplicates("run")
    runs = runs[runs["run"].isin(rows["run"])]
    runs = runs.assign(variant=[variant(record) for record in runs.to_dict("records")])
    deepest = runs.sort_values("spec.model.layers").groupby("variant").tail(1)
    chosen = rows.merge(deepest[["run", "variant", "spec.model.layers"]], on="run")
    keys = ["variant", "run", "spec.model.layers", "destination", "source"]
    means = chosen.groupby(keys)["weight"].agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    means = means.rename(columns={"source": "source_block", "spec.model.layers": "layers"})
    return means.assign(source="ours").sort_values(["variant", "destination", "source_block"], ignore_index=True)


def draw(data: DataFrame) -> Figure:
    """Draw one heat map per dilation and period, 1x1 first."""
    seeds = sorted(data["seeds"].unique())
    notes = [f"Mean over {n_seeds(seeds)}; grey cells: no weight."]
    if f"{DENSEFORMER} 1x1" not in set(data["variant"]):
        notes.append(f"Missing, no finished runs: {DENSEFORMER} 1x1.")
    names = sorted(data["variant"].unique())
    figure, axes = canvas([3.2] * len(names), notes, height=3.2, right=1.1, columns=3)
    scale = weight_scale(data)
    for panel, name in zip(axes, names, strict=True):
        rows = data[data["variant"] == name]
        image = draw_weights(panel, rows, scale, f"{name}, {rows['layers'].iloc[0]:.0f} blocks")
    colour_bar(figure, axes[-1], image)
    return figure


def weight_scale(weights: DataFrame) -> SymLogNorm:
    """Return the colours of weights: linear near zero, then logarithmic, the same on both sides."""
    limit = max(1.0, float(weights["weight"].abs().max()))
    return SymLogNorm(linthresh=_LINEAR, vmin=-limit, vmax=limit, base=10)


def colour_bar(figure: Figure, panel: Axes, image: AxesImage) -> None:
    """Draw the scale of colours beside a panel."""
    box, width = panel.get_position(), figure.get_size_inches()[0]
    bar = figure.add_axes((box.x1 + 0.25 / width, box.y0, 0.12 / width, box.height))
    figure.colorbar(image, bar, label="weight", ticks=[-1, -0.5, -0.1, -0.05, 0, 0.05, 0.1, 0.5, 1], format="%g")
    bar.minorticks_off()


def draw_weights(axes: Axes, weights: DataFrame, norm: SymLogNorm, title: str) -> AxesImage:
    """Draw the weights of one model: a row per average, a column per source."""
    layers = int(weights["layers"].iloc[0])
    grid = np.full((layers, layers + 1), np.nan)
    grid[weights["destination"].astype(int) - 1, weights["source_block"].astype(int)] = weights["weight"]
    image = axes.imshow(grid, cmap="RdBu_r", norm=norm, extent=(-0.5, layers + 0.5, layers + 0.5, 0.5), aspect="auto",
                        interpolation="nearest")  # fmt: skip
    axes.set_facecolor("#d9d9d9")
    axes.set_title(title)
    axes.set_xlabel("source j (0: embedding)")
    axes.set_ylabel("average after block i")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(visible=False)
    return image
