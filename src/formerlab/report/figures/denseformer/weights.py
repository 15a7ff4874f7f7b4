"""Learned mixing weights, at the end and over training (DenseFormer, arXiv:2402.02622, Fig 5, 8 and 10)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.depth import at_last_step
from formerlab.report.drawings import Plot
from formerlab.report.panel import setting
from formerlab.report.runs import DENSEFORMER, n_seeds, variant
from formerlab.report.style import canvas, one_large
from formerlab.results.read import Results

STUDY = "denseformer"
_LINEAR = 0.05
"""Weights below this are drawn on a linear scale, as in the paper."""


def weights_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return mean and spread over seeds of every weight of the deepest run of each dilation and period."""
    rows = at_last_step(results.rows("depth.csv", STUDY, runs))
    records = results.runs(STUDY, runs).drop_duplicates("run")
    records = records[records["run"].isin(rows["run"])]
    records = records.assign(variant=[variant(record) for record in records.to_dict("records")])
    deepest = records.sort_values("spec.model.layers").groupby("variant").tail(1)
    chosen = rows.merge(deepest[["run", "variant", "spec.model.layers"]], on="run")
    keys = ["variant", "run", "spec.model.layers", "destination", "source"]
    means = chosen.groupby(keys)["weight"].agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    means = means.rename(columns={"source": "source_block", "spec.model.layers": "layers"})
    return means.assign(source="ours").sort_values(["variant", "destination", "source_block"], ignore_index=True)


def draw_weights(data: DataFrame) -> Figure:
    """Draw the heat map of 1x1 large, and those of the other dilations and periods small."""
    dense = f"{DENSEFORMER} 1x1"
    names = sorted(data["variant"].unique(), key=lambda name: (name != dense, name))
    notes = [f"Mean over {n_seeds(sorted(data['seeds'].unique()))}; grey cells: no weight."]
    notes += [] if names[0] == dense else [f"Missing, no finished runs: {dense}."]
    figure, axes = one_large(len(names) - 1, 3, left=0.5, below=0.45, right=0.95)
    figure.set_label(" ".join(notes))
    scale = weight_scale(data)
    for panel, name in zip(axes, names, strict=True):
        rows = data[data["variant"] == name]
        large = panel is axes[0]
        title = f"{name}: {setting(rows)}" if large else name.removeprefix(f"{DENSEFORMER} ")
        image = _draw_map(panel, rows, scale, title)
        if not large:
            panel.set(xlabel="", ylabel="", xticks=[], yticks=[])
    colour_bar(figure, axes[0], image)
    return figure


def weight_scale(weights: DataFrame) -> SymLogNorm:
    """Return the colours of weights: linear near zero, then logarithmic, the same on both sides."""
    limit = max(1.0, float(weights["weight"].abs().max()))
    return SymLogNorm(linthresh=_LINEAR, vmin=-limit, vmax=limit, base=10)


def colour_bar(figure: Figure, panel: Axes, image: AxesImage) -> None:
    """Draw the scale of colours beside a panel."""
    box, width = panel.get_position(), figure.get_size_inches()[0]
    bar = figure.add_axes((box.x1 + 0.08 / width, box.y0, 0.08 / width, box.height))
    figure.colorbar(image, bar, label="weight", ticks=[-1, -0.5, -0.1, -0.05, 0, 0.05, 0.1, 0.5, 1], format="%g")
    bar.minorticks_off()


def _draw_map(axes: Axes, weights: DataFrame, norm: SymLogNorm, title: str) -> AxesImage:
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


denseformer_weights = Plot(
    reads=("depth.csv", "run.json"),
    runs=("depth.kind=dwa",),
    caption=(
        "Mixing weights alpha that DenseFormer learned, after Fig. 5 of arXiv:2402.02622: row i is the average taken "
        "after block i, column j the source X_j, and X_0 the embedding. For each dilation and period the deepest "
        "model is shown, as the mean over seeds. At the start of training the diagonal is 1 and all else 0. To see: "
        "whether the pattern of the paper appears, with weight on the diagonal and just beside it, a column at X_0 "
        "that is positive early and negative late, and a triangle of large weights over the last blocks. Colours "
        "are linear between -0.05 and 0.05, logarithmic beyond."
    ),
    data=weights_data,
    draw=draw_weights,
)


PANELS = 6
"""Times that are shown, of all evaluations."""


def evolution_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the mean over seeds of every weight at some evaluations of the deepest run, the last one included."""
    rows = results.rows("depth.csv", STUDY, runs)
    if "step" not in rows or rows["step"].isna().all():
        return DataFrame()
    depths = rows.dropna(subset="step").groupby("run")["destination"].max()
    rows = rows[rows["run"] == depths.idxmax()]
    grouped = rows.groupby(["run", "step", "destination", "source"])["weight"]
    means: DataFrame = grouped.agg(["mean", "count"]).reset_index()
    means = means.rename(columns={"source": "source_block", "mean": "weight", "count": "seeds"})
    steps = np.array(sorted(means["step"].unique()))
    steps = steps[1:] if len(steps) > PANELS else steps  # the identity at the start needs no panel
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, PANELS).round().astype(int))]
    means = means[means["step"].isin(chosen)]
    final = means[means["step"] == steps[-1]].set_index(["destination", "source_block"])["weight"]
    likeness = {step: _likeness(group, final) for step, group in means.groupby("step")}
    return means.assign(layers=float(depths.max()), correlation_with_end=means["step"].map(likeness), source="ours")


def _likeness(group: DataFrame, final: "pd.Series[float]") -> float:
    """Return the correlation of the weights off the diagonal with the final ones; NaN where they are all alike."""
    beside = group[group["destination"] != group["source_block"]]
    other = final.loc[list(zip(beside["destination"], beside["source_block"], strict=True))]
    if beside["weight"].std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.corrcoef(beside["weight"], other)[0, 1])


def draw_evolution(data: DataFrame) -> Figure:
    """Draw a heat map per time."""
    steps = sorted(data["step"].unique())
    seeds = int(data["seeds"].max())
    notes = [f"Mean over {n_seeds([seeds])}; grey cells: no weight."]
    notes.append("r: correlation with the last panel, off the diagonal. Colours as in denseformer_weights.")
    figure, axes = canvas(len(steps), 3, 1.6, notes, left=0.5, right=0.3, heading=setting(data))
    scale = weight_scale(data)
    for panel, step in zip(axes, steps, strict=True):
        rows = data[data["step"] == step]
        likeness = rows["correlation_with_end"].iloc[0]
        known = "" if np.isnan(likeness) else f", r = {likeness:.2f}"
        image = _draw_map(panel, rows, scale, f"step {step:.0f}{known}")
    colour_bar(figure, axes[-1], image)
    return figure


denseformer_evolution = Plot(
    reads=("depth.csv", "run.json"),
    runs=("depth.kind=dwa depth.dilation=1 depth.period=1",),
    caption=(
        "Mixing weights of the deepest DenseFormer 1x1 at several times of training, after Fig. 10 of "
        "arXiv:2402.02622: row i is the average after block i, column j the source X_j, X_0 the embedding; the mean "
        "over seeds. To see: when the pattern of the end appears. In the paper it is there after 5000 of 40,000 "
        "steps; the number over each panel is the correlation of its weights off the diagonal with those at the end."
    ),
    data=evolution_data,
    draw=draw_evolution,
)
