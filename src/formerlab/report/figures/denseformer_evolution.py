"""Mixing weights over training (DenseFormer, arXiv:2402.02622, Fig 10)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._style import canvas, n_seeds
from formerlab.report.figures.denseformer_weights import colour_bar, draw_weights, weight_scale
from formerlab.results.read import Results

STUDY = "denseformer"
READS = ("depth.csv", "run.json")
RUNS = ("dwa-1x1-*",)
CAPTION = (
    "Mixing weights of the deepest DenseFormer 1x1 at several times of training, after Fig. 10 of "
    "arXiv:2402.02622: row i is the average after block i, column j the source X_j, X_0 the embedding; the mean "
    "over seeds. To see: when the pattern of the end appears. In the paper it is there after 5000 of 40,000 "
    "steps; the number over each panel is the correlation of its weights off the diagonal with those at the end."
)
PANELS = 6
"""Times that are shown, of all evaluations."""


def data(results: Results) -> DataFrame:
    """Return the mean over seeds of every weight at some evaluations of the deepest run, the last one included."""
    rows = results.rows("depth.csv", STUDY, RUNS)
    if rows.empty or "step" not in rows or rows["step"].isna().all():
        return DataFrame(columns=["source"])
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


def draw(data: DataFrame) -> Figure:
    """Draw a heat map per time."""
    steps = sorted(data["step"].unique())
    seeds = int(data["seeds"].max())
    notes = [f"{data['run'].iloc[0]}: mean over {n_seeds([seeds])}; grey cells: no weight."]
    notes.append("r: correlation with the last panel, off the diagonal. Colours as in denseformer_weights.")
    figure, axes = canvas([2.5] * len(steps), notes, height=2.5, right=1.0, columns=3)
    scale = weight_scale(data)
    for panel, step in zip(axes, steps, strict=True):
        rows = data[data["step"] == step]
        likeness = rows["correlation_with_end"].iloc[0]
        known = "" if np.isnan(likeness) else f", r = {likeness:.2f}"
        image = draw_weights(panel, rows, scale, f"step {step:.0f}{known}")
    colour_bar(figure, axes[-1], image)
    return figure
