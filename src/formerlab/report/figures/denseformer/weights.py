"""Learned mixing weights, at the end and over training (DenseFormer, arXiv:2402.02622, Fig 5, 8 and 10)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, Series

from formerlab.report.drawings import plot
from formerlab.report.panel import setting
from formerlab.report.runs import DENSEFORMER, n_seeds, variant
from formerlab.report.style import WIDEST, canvas, heat, one_large
from formerlab.results.read import Results

STUDY = "denseformer"
_LINEAR = 0.05
"""Weights below this are drawn on a linear scale, as in the paper."""


def draw_weights(data: DataFrame) -> Figure:
    """Draw the heat map of 1x1 large, and those of the other dilations and periods small."""
    dense = f"{DENSEFORMER} 1x1"
    names = sorted(data["variant"].unique(), key=lambda name: (name != dense, name))
    figure, axes = one_large(len(names) - 1, 3, left=0.5, below=0.45, right=0.95)
    for panel, name in zip(axes, names, strict=True):
        rows, large = data[data["variant"] == name], panel is axes[0]
        title = f"{name}: {setting(rows)}" if large else name.removeprefix(f"{DENSEFORMER} ")
        _draw_map(panel, rows, data, title, bar=large)
        if not large:
            panel.set(xlabel="", ylabel="", xticks=[], yticks=[])
    figure.set_label(f"Mean over {n_seeds(data['seeds'].unique())}; grey cells: no weight.")
    return figure


def _draw_map(axes: Axes, rows: DataFrame, data: DataFrame, title: str, *, bar: bool) -> None:
    """Draw the weights of one model: a row per average, a column per source; and beside them the scale of colours.

    Colours are linear near zero, then logarithmic, the same on both sides and for all of the data.
    """
    layers, limit = int(rows["layers"].iloc[0]), max(1.0, float(data["weight"].abs().max()))
    grid = np.full((layers, layers + 1), np.nan)
    grid[rows["destination"].astype(int) - 1, rows["source_block"].astype(int)] = rows["weight"]
    norm = SymLogNorm(linthresh=_LINEAR, vmin=-limit, vmax=limit, base=10)
    shape = {"cmap": "RdBu_r", "norm": norm, "extent": (-0.5, layers + 0.5, layers + 0.5, 0.5)}
    words = {"title": title, "xlabel": "source j (0: embedding)", "ylabel": "average after block i"}
    image = heat(axes, grid, shape, facecolor="#d9d9d9", **words)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(8, integer=True))
    if bar:
        box, width = axes.get_position(), 0.08 / WIDEST
        beside = axes.figure.add_axes((box.x1 + width, box.y0, width, box.height))
        marks = [-1, -0.5, -0.1, -0.05, 0, 0.05, 0.1, 0.5, 1]
        axes.figure.colorbar(image, beside, label="weight", ticks=marks, format="%g")
        beside.minorticks_off()


@plot(
    reads=("depth.csv", "run.json"),
    runs=("depth.kind=dwa",),
    draw=draw_weights,
)
def denseformer_weights(results: Results, runs: Sequence[str]) -> DataFrame:
    """Mixing weights alpha that DenseFormer learned, after Fig. 5 of arXiv:2402.02622: row i is the average taken after
    block i, column j the source X_j, and X_0 the embedding. For each dilation and period the deepest model is shown, as
    the mean over seeds. At the start of training the diagonal is 1 and all else 0. To see: whether the pattern of the
    paper appears, with weight on the diagonal and just beside it, a column at X_0 that is positive early and negative
    late, and a triangle of large weights over the last blocks. Colours are linear between -0.05 and 0.05, logarithmic
    beyond.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    if "step" in rows:
        last = rows.groupby(["run", "seed"])["step"].transform("max")
        rows = rows[rows["step"].isna() | (rows["step"] == last)]
    records = results.runs(STUDY, runs).drop_duplicates("run")
    records = records[records["run"].isin(rows["run"])]
    records = records.assign(variant=[variant(record) for record in records.to_dict("records")])
    deepest = records.sort_values("spec.model.layers").groupby("variant").tail(1)
    chosen = rows.merge(deepest[["run", "variant", "spec.model.layers"]], on="run")
    keys = ["variant", "run", "spec.model.layers", "destination", "source"]
    means = chosen.groupby(keys)["weight"].agg(weight="mean", weight_sd="std", seeds="count").reset_index()
    means = means.rename(columns={"source": "source_block", "spec.model.layers": "layers"})
    return means.assign(source="ours").sort_values(["variant", "destination", "source_block"], ignore_index=True)


PANELS = 6
"""Times that are shown, of all evaluations."""


def _correlation(a: "Series[float]", b: "Series[float]") -> float:
    """Return the correlation of two sets of weights; NaN where those of one are all alike."""
    return float("nan") if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def draw_evolution(data: DataFrame) -> Figure:
    """Draw a heat map per time."""
    times = list(data.groupby("step"))
    note = f"Mean over {n_seeds([data['seeds'].max()])}; colours as in denseformer_weights."
    figure, axes = canvas(len(times), 3, 1.6, note, left=0.5, right=0.3, heading=setting(data))
    for panel, (step, rows) in zip(axes, times, strict=True):
        likeness = rows["correlation_with_end"].iloc[0]
        known = "" if np.isnan(likeness) else f", r = {likeness:.2f}"
        _draw_map(panel, rows, data, f"step {step:.0f}{known}", bar=panel is axes[-1])
    return figure


@plot(
    reads=("depth.csv", "run.json"),
    runs=("depth.kind=dwa depth.dilation=1 depth.period=1",),
    draw=draw_evolution,
)
def denseformer_evolution(results: Results, runs: Sequence[str]) -> DataFrame:
    """Mixing weights of the deepest DenseFormer 1x1 at several times of training, after Fig. 10 of arXiv:2402.02622:
    row i is the average after block i, column j the source X_j, X_0 the embedding; the mean over seeds. To see: when
    the pattern of the end appears. In the paper it is there after 5000 of 40,000 steps; the number over each panel is
    the correlation of its weights off the diagonal with those at the end.
    """
    rows = results.rows("depth.csv", STUDY, runs)
    if "step" not in rows or rows["step"].isna().all():
        return DataFrame()
    depths = rows.dropna(subset="step").groupby("run")["destination"].max()
    rows = rows[rows["run"] == depths.idxmax()]
    grouped = rows.groupby(["run", "step", "destination", "source"])["weight"]
    means = grouped.agg(weight="mean", seeds="count").reset_index().rename(columns={"source": "source_block"})
    steps = np.array(sorted(means["step"].unique()))
    steps = steps[1:] if len(steps) > PANELS else steps  # the identity at the start needs no panel
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, PANELS).round().astype(int))]
    means = means[means["step"].isin(chosen)]
    beside = means[means["destination"] != means["source_block"]]
    table = beside.pivot(index="step", columns=["destination", "source_block"], values="weight")
    likeness = {step: _correlation(row, table.loc[steps[-1]]) for step, row in table.iterrows()}
    return means.assign(layers=float(depths.max()), correlation_with_end=means["step"].map(likeness), source="ours")
