"""Perplexity against speed (DenseFormer, arXiv:2402.02622, Fig 3)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.depth import gains, published_depths, speeds
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge
from formerlab.report.runs import count_notes
from formerlab.report.style import GREY, canvas, look, loss_axis, mark_published, widen
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run both trained and timed, and per model of Table 1; `front` marks the Pareto front."""
    ours = gains(results, STUDY, runs)
    if len(ours):
        ours = ours[ours["setting"] == "main"].merge(speeds(results, STUDY), on="run")
    if len(ours):
        ours["batches_per_s"] = 1 / ours[f"{FORWARD}_time_s"]
        ours["batches_per_s_low"] = 1 / ours[f"{FORWARD}_time_s_high"]
        ours["batches_per_s_high"] = 1 / ours[f"{FORWARD}_time_s_low"]
        ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
    theirs = published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    theirs["front"] = _front(theirs["batches_per_s"], theirs["perplexity"])
    columns = ["source", "run", "variant", "layers", "batches_per_s", "batches_per_s_low", "batches_per_s_high"]
    columns += [f"{FORWARD}_sequences"]
    columns += ["loss_nats", "loss_nats_low", "loss_nats_high", "perplexity", "seeds", "diverged", "front"]
    return pd.concat([ours, theirs], ignore_index=True).reindex(columns=columns)


def _front(speed: "pd.Series[float]", loss: "pd.Series[float]") -> list[bool]:
    """Say of each point whether no other is at least as fast and better, or as good and faster."""
    points = list(zip(speed, loss, strict=True))
    return [
        not any((s >= speed and v < loss) or (s > speed and v <= loss) for s, v in points) for speed, loss in points
    ]


def draw(data: DataFrame) -> Figure:
    """Draw ours left and Table 1 right."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    notes = [
        *count_notes(ours),
        "Numbers beside points are blocks. Horizontal bars: quartiles over repetitions of the timing.",
        "Published: 256 tokens, on GPUs that the paper does not name. Dotted: Pareto front.",
    ]
    figure, (left, right) = canvas([4.6, 3.2], notes, right=[1.5, 1.4], height=3.6)
    _draw_points(left, ours, "loss_nats")
    loss_axis(left)
    left.set_title("Ours")
    _draw_points(right, theirs, "perplexity", hollow=True)
    right.set_ylabel("perplexity")
    mark_published(right, "Table 1")
    return figure


def _draw_points(axes: Axes, rows: DataFrame, column: str, *, hollow: bool = False) -> None:
    labels = []
    for name, points in rows.sort_values("batches_per_s").groupby("variant", sort=False):
        colour, marker = look(str(name))
        x, y = points["batches_per_s"], points[column]
        axes.plot(x, y, color=colour, marker=marker, markerfacecolor="white" if hollow else colour)
        if not hollow:
            axes.errorbar(
                x,
                y,
                xerr=[x - points["batches_per_s_low"], points["batches_per_s_high"] - x],
                yerr=[y - points["loss_nats_low"], points["loss_nats_high"] - y],
                fmt="none",
                color=colour,
                elinewidth=0.8,
            )
        for row in points.itertuples():
            place = (row.batches_per_s, getattr(row, column))
            axes.annotate(f"{row.layers:.0f}", place, (0, 5), textcoords="offset points", fontsize=6, ha="center")
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), colour))
    front = rows[rows["front"]].sort_values("batches_per_s")
    axes.step(front["batches_per_s"], front[column], where="pre", color=GREY, linewidth=1, linestyle=":", zorder=0)
    axes.set_xlabel(f"full forward passes per second ({rows[f'{FORWARD}_sequences'].max():.0f} sequences)")
    widen(axes, 0.5)
    label_at_edge(axes, labels, size=7)


denseformer_tradeoff = Plot(
    reads=("test.csv", "run.json", "speed.csv"),
    runs=("*",),
    caption=(
        "Held-out loss against the speed of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622): each "
        "point is a model, lines join the depths of one kind, and the dotted line is the Pareto front, models than "
        "which none is both faster and better. To see: whether the front is made of DenseFormers, and how much faster "
        "one is than the plain Transformer that reaches its loss. Speeds are medians of repetitions on an otherwise "
        "idle machine. Right: perplexity and batches per second of Table 1."
    ),
    data=data,
    draw=draw,
)
