"""Held-out loss against depth and against speed (DenseFormer, arXiv:2402.02622, Table 1 and Fig 3)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.panel import Panel, sheet
from formerlab.report.runs import DENSEFORMER, INTERVALS, TRANSFORMER, by_run, held_out_losses
from formerlab.report.style import GREY
from formerlab.report.tables.denseformer import gains, published_depths, speeds, with_seeds
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"
SOURCES = (("ours", "loss_nats", "{setting}", "held-out loss (nats per token)"),
           ("published", "perplexity", "Table 1", "perplexity"))  # fmt: skip
"""Source, column, title and label of the panels of both figures."""


@plot(
    reads=("test.csv", "run.json"),
    runs=("depth.kind=identity", "depth.kind=dwa"),
    draw=sheet(
        *(
            Panel("layers", y, where={"source": source}, title=title, xlabel="depth (blocks)", ylabel=label,
                  name="legend", ticks="{:.0f}".format, perplexity=source == "ours")
            for source, y, title, label in SOURCES
        ),
        wanted=[TRANSFORMER, f"{DENSEFORMER} 1x1"], height=2.6,
    ),
)  # fmt: skip
def denseformer_depth(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss of plain Transformers and DenseFormers against depth, after Table 1 of DenseFormer
    (arXiv:2402.02622); k x p is dilation k and period p. To see: how far a DenseFormer lies below the plain Transformer
    of its depth, and which depth the plain one needs to reach it. Where the plain line does not fall with depth, part
    of the gain is easier optimisation. Bars of a DenseFormer are those of its difference to the Transformer of its
    depth, paired by seed: it is established where the bar does not reach the Transformer's mean. Right: the published
    perplexities, for 378 to 676 million parameters (OWT2, 40k steps).
    """
    losses, pairs = held_out_losses(results, STUDY, runs), gains(results, runs)
    means = by_run(losses)
    if "gain_nats" in pairs:
        pairs = pairs[pairs["interval"] == INTERVALS["student"]].set_index("run")
        of_run = pairs.reindex(means["run"]).set_axis(means.index)
        means = means.assign(paired=means["run"].isin(pairs.index))
        for end, gain in (("low", "high"), ("high", "low")):
            paired = means["loss_nats"] + (of_run["gain_nats"] - of_run[f"gain_nats_{gain}"])
            means[f"loss_nats_{end}"] = means[f"loss_nats_{end}"].where(~means["paired"], paired)
            means[f"perplexity_{end}"] = np.exp(means[f"loss_nats_{end}"])
    ours = with_seeds(means.sort_values(["variant", "layers"]), losses, ("source", "variant", "layers"))
    return pd.concat([ours, published_depths().assign(part="mean")], ignore_index=True)


def _front(speed: "pd.Series[float]", loss: "pd.Series[float]") -> list[bool]:
    """Say of each point whether no other is at least as fast and better, or as good and faster."""
    points = list(zip(speed, loss, strict=True))
    return [not any((s >= a and v < b) or (s > a and v <= b) for s, v in points) for a, b in points]


def _mark_depths(axes: Axes, rows: DataFrame) -> None:
    """Write the depth beside each point, and draw the Pareto front."""
    points = rows[rows["part"] == "mean"].sort_values("batches_per_s")
    column = "loss_nats" if points["source"].eq("ours").all() else "perplexity"
    for layers, x, y in points[["layers", "batches_per_s", column]].itertuples(index=False, name=None):
        axes.annotate(f"{layers:.0f}", (x, y), (5, 4), textcoords="offset points", color=GREY)
    front = points[points["front"].astype(bool)]
    axes.step(front["batches_per_s"], front[column], where="pre", color=GREY, linewidth=1, linestyle=":", zorder=0)


@plot(
    reads=("test.csv", "run.json", "speed.csv"),
    runs=("*",),
    draw=sheet(
        *(
            Panel("batches_per_s", y, where={"source": source}, title=title, ylabel=label, name="legend",
                  xlabel=f"forward passes of {{{FORWARD}_sequences:.0f}} sequences a second",
                  finish=_mark_depths, perplexity=source == "ours")
            for source, y, title, label in SOURCES
        ),
        height=2.6,
    ),
)  # fmt: skip
def denseformer_tradeoff(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out loss against the speed of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622): each
    point is a model, the number beside it its blocks, lines join the depths of one kind, and the dotted line is the
    Pareto front, models than which none is both faster and better. To see: whether the front is made of DenseFormers,
    and how much faster one is than a plain Transformer that reaches its loss, where a scale has one. Speeds are medians
    of repetitions on an otherwise idle machine, horizontal bars their quartiles. Right: perplexity and batches per
    second of Table 1.
    """
    ours = gains(results, runs)
    ours = ours[ours["setting"] == "main"].merge(speeds(results), on="run")
    if len(ours):
        for end, time in (("", ""), ("_low", "_high"), ("_high", "_low")):
            ours[f"batches_per_s{end}"] = 1 / ours[f"{FORWARD}_time_s{time}"]
        ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
        ours = with_seeds(ours, held_out_losses(results, STUDY), ("source", "variant", "layers", "batches_per_s"))
    theirs = published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    theirs = theirs.assign(front=_front(theirs["batches_per_s"], theirs["perplexity"]), part="mean")
    columns = f"source part run variant layers batches_per_s[] {FORWARD}_sequences loss_nats[] perplexity seeds seed"
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=shown_columns(f"{columns} diverged front"))
