"""Held-out loss against depth (DenseFormer, arXiv:2402.02622, Table 1 and Fig 3)."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from pandas import DataFrame

from formerlab.report.depth import METHODS, gains, published_depths, with_seeds
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.runs import DENSEFORMER, TRANSFORMER, by_run, count_notes, held_out_losses, missing_note
from formerlab.report.style import aside, canvas, cut_bars, look, loss_axis, mark_published, widen
from formerlab.results.read import Results

STUDY = "denseformer"
_PAIRED = [
    "Bars of a DenseFormer: 95 % Student t interval of its difference to the Transformer of its depth, paired by seed: "
    "the difference is established where the bar does not reach the Transformer's mean, whatever its own bar."
]


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run, ours and the paper's, and one per seed of ours: `part` is mean or seed.

    The ends of a DenseFormer of several seeds are those of its paired difference to the Transformer of its depth: the
    seeds of both share their data, so the differences spread far less than the losses.
    """
    losses = held_out_losses(results, STUDY, runs)
    ours = []
    if len(losses):
        means = _with_paired_ends(by_run(losses), gains(results, STUDY, runs)).sort_values(["variant", "layers"])
        ours = [with_seeds(means, losses, ("source", "variant", "layers"))]
    return pd.concat([*ours, published_depths().assign(part="mean")], ignore_index=True)


def _with_paired_ends(means: DataFrame, pairs: DataFrame) -> DataFrame:
    if "gain_nats" not in pairs:
        return means
    pairs = pairs[pairs["interval"] == METHODS["student"]].set_index("run")
    paired = means["run"].isin(pairs.index)
    of_run = pairs.reindex(means["run"]).set_axis(means.index)
    above, below = (abs(of_run[f"gain_nats_{end}"] - of_run["gain_nats"]) for end in ("low", "high"))
    means = means.assign(paired=paired)
    means.loc[paired, "loss_nats_low"] = means["loss_nats"] - below
    means.loc[paired, "loss_nats_high"] = means["loss_nats"] + above
    for end in ("low", "high"):
        means[f"perplexity_{end}"] = np.exp(means[f"loss_nats_{end}"])
    return means


def draw(data: DataFrame) -> Figure:
    """Draw our depths left and the published ones right."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    seeds, ours = ours[ours["part"] == "seed"], ours[ours["part"] == "mean"]
    sparse = [
        name for name in ours["variant"].unique() if name != f"{DENSEFORMER} 1x1" and name.startswith(DENSEFORMER)
    ]
    notes = [
        *count_notes(ours),
        *missing_note(
            list(ours["variant"]), [TRANSFORMER, f"{DENSEFORMER} 1x1", *(sparse or [f"{DENSEFORMER} k x p"])]
        ),
        *_PAIRED * bool("paired" in ours and ours["paired"].eq(True).any()),
        "Small dots: seeds. Points of equal depth stand side by side. "
        "Published: OWT2, batch 400, 256 tokens, 40k steps; bars: one standard error over 3 runs, mostly hidden.",
    ]
    figure, (left, right) = canvas([4.2, 3.6], notes, right=[1.5, 1.3])
    _draw_lines(left, ours, "loss_nats", seeds)
    cut_bars(left, ours["loss_nats"], ours["loss_nats_low"], ours["loss_nats_high"])
    loss_axis(left)
    left.set_title("Ours")
    bounds = theirs.assign(
        perplexity_low=theirs["perplexity"] - theirs["perplexity_se"],
        perplexity_high=theirs["perplexity"] + theirs["perplexity_se"],
    )
    _draw_lines(right, bounds, "perplexity", theirs[:0], hollow=True)
    right.set_yscale("log")
    right.yaxis.set_major_locator(FixedLocator([17, 17.5, 18, 18.5]))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.set_ylabel("perplexity")
    mark_published(right, "Table 1")
    return figure


def _draw_lines(axes: Axes, rows: DataFrame, column: str, seeds: DataFrame, *, hollow: bool = False) -> None:
    labels = []
    depths = sorted(rows["layers"].unique())
    step = 0.0 if hollow else 0.03 * (depths[-1] - depths[0])
    groups = list(rows.sort_values("layers", kind="stable").groupby("variant", sort=False))
    for place, (name, points) in enumerate(groups):
        kind = look(str(name))
        x, y = aside(points["layers"], place, len(groups), step), points[column]
        ends = points[f"{column}_low"], points[f"{column}_high"]
        points_with_bars(axes, x, y, ends, kind, markerfacecolor="white" if hollow else kind.colour)
        own = seeds[seeds["variant"] == name]
        beside = aside(own["layers"], place, len(groups), step) + 0.5 * step
        axes.plot(beside, own[column], "o", color=kind.colour, markersize=2.5, alpha=0.7)
        if hollow and len(points) == 1:  # beside the point, the name would lie on the line of the Transformers
            point = (x.iloc[0], y.iloc[0])
            axes.annotate(
                fill(str(name), 6), point, (-4, -7), textcoords="offset points", va="top", size=8, color=kind.colour
            )
        else:
            labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), kind.colour))
    axes.set_xlabel("depth (blocks)")
    axes.set_xticks(depths)
    if not hollow:
        widen(axes, 0.45)
    label_directly(axes, labels)


denseformer_depth = Plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    caption=(
        "Held-out loss of plain Transformers and DenseFormers against depth, after Table 1 of DenseFormer "
        "(arXiv:2402.02622); k x p is dilation k and period p. To see: how far a DenseFormer lies "
        "below the plain Transformer of its depth, and which depth the plain one needs to reach it. Where the plain "
        "line does not fall with depth, deep plain models are not trained to their end, and part of the gain is "
        "easier optimisation. Right: the published perplexities, for 378 to 676 million parameters."
    ),
    data=data,
    draw=draw,
)
