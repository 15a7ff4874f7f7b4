"""Perplexity against speed (DenseFormer, arXiv:2402.02622, Fig 3)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.depth import gains, published_depths, speeds, with_seeds
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge
from formerlab.report.runs import TRANSFORMER, count_notes, held_out_losses
from formerlab.report.style import GREY, canvas, look, loss_axis, mark_published, widen
from formerlab.results.read import Results
from formerlab.results.schema import FORWARD

STUDY = "denseformer"


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run both trained and timed, and per model of Table 1; `front` marks the Pareto front.

    Our runs have a row per seed below them: `part` is mean or seed.
    """
    ours = gains(results, STUDY, runs)
    if len(ours):
        ours = ours[ours["setting"] == "main"].merge(speeds(results, STUDY), on="run")
    if len(ours):
        ours["batches_per_s"] = 1 / ours[f"{FORWARD}_time_s"]
        ours["batches_per_s_low"] = 1 / ours[f"{FORWARD}_time_s_high"]
        ours["batches_per_s_high"] = 1 / ours[f"{FORWARD}_time_s_low"]
        ours["front"] = _front(ours["batches_per_s"], ours["loss_nats"])
        shared = ("source", "variant", "layers", "batches_per_s")
        ours = with_seeds(ours, held_out_losses(results, STUDY), shared)
    theirs = published_depths().rename(columns={"inference_batches_per_s": "batches_per_s"})
    theirs = theirs.assign(front=_front(theirs["batches_per_s"], theirs["perplexity"]), part="mean")
    columns = ["source", "part", "run", "variant", "layers", "batches_per_s", "batches_per_s_low", "batches_per_s_high"]
    columns += [f"{FORWARD}_sequences"]
    columns += ["loss_nats", "loss_nats_low", "loss_nats_high", "perplexity", "seeds", "seed", "diverged", "front"]
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
    seeds, ours = ours[ours["part"] == "seed"], ours[ours["part"] == "mean"]
    notes = [
        *count_notes(ours),
        "Small dots: seeds. Horizontal bars: quartiles over repetitions of the timing. Dotted: Pareto front. "
        "Published: numbers are blocks; 256 tokens, on GPUs that the paper does not name.",
    ]
    handles, words = _keys(ours)
    room = 1.7 + 0.065 * max(map(len, words), default=0)  # inches: the perplexity's axis, marks, letters
    figure, (left, right) = canvas([4.6, 3.2], notes, right=[room, 1.4], height=3.6)
    _draw_bars(left, ours, seeds)
    _draw_points(left, ours, "loss_nats")
    loss_axis(left)
    left.set_title("Ours")
    left.legend(handles, words, loc="upper left", bbox_to_anchor=(1.17, 1.0), fontsize=8)
    _draw_points(right, theirs, "perplexity", hollow=True)
    widen(right, 0.45)
    label_at_edge(right, [_label(points) for _, points in theirs.groupby("variant", sort=False)], size=7)
    right.set_ylabel("perplexity")
    mark_published(right, "Table 1")
    return figure


def _draw_bars(axes: Axes, rows: DataFrame, seeds: DataFrame) -> None:
    """Draw the intervals, and the seeds a little to the left of them."""
    aside = 0.012 * (rows["batches_per_s"].max() - rows["batches_per_s"].min())
    for name, points in rows.groupby("variant", sort=False):
        colour, x, y = look(str(name)).colour, points["batches_per_s"], points["loss_nats"]
        across = [x - points["batches_per_s_low"], points["batches_per_s_high"] - x]
        up = [y - points["loss_nats_low"], points["loss_nats_high"] - y]
        axes.errorbar(x, y, xerr=across, yerr=up, fmt="none", color=colour, elinewidth=0.8)
        own = seeds[seeds["variant"] == name]
        axes.plot(own["batches_per_s"] - aside, own["loss_nats"], "o", color=colour, markersize=2.5, alpha=0.7)


def _draw_points(axes: Axes, rows: DataFrame, column: str, *, hollow: bool = False) -> None:
    """Draw models, the depths of one kind joined; where a kind has one depth alone, its name says which."""
    for name, points in rows.sort_values("batches_per_s").groupby("variant", sort=False):
        colour, marker = look(str(name))
        x, y = points["batches_per_s"], points[column]
        axes.plot(x, y, color=colour, marker=marker, markerfacecolor="white" if hollow else colour)
        for row in points.itertuples() if hollow or len(points) > 1 else ():
            place = (row.batches_per_s, getattr(row, column))
            # Lines rise to the right; the plain Transformer's lies above the others.
            offset, side = ((-4, 4), "right") if name == TRANSFORMER else ((2, -10), "left")
            axes.annotate(
                f"{row.layers:.0f}", place, offset, textcoords="offset points", fontsize=7, color=colour, ha=side
            )
    front = rows[rows["front"].astype(bool)].sort_values("batches_per_s")
    axes.step(front["batches_per_s"], front[column], where="pre", color=GREY, linewidth=1, linestyle=":", zorder=0)
    axes.set_xlabel(f"full forward passes per second ({rows[f'{FORWARD}_sequences'].max():.0f} sequences)")


def _label(points: DataFrame) -> Label:
    fastest = points.sort_values("batches_per_s").iloc[-1]
    name = str(fastest["variant"])
    return Label(fastest["batches_per_s"], fastest["perplexity"], name, look(name).colour)


def _keys(rows: DataFrame) -> tuple[list[Line2D], list[str]]:
    """Return the handles and words of the legend, the highest loss first as in the panel."""
    handles, words = [], []
    worst_first = rows.groupby("variant")["loss_nats"].mean().sort_values(ascending=False)
    for name in worst_first.index:
        depths = rows.loc[rows["variant"] == name, "layers"]
        colour, marker = look(str(name))
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="-" if len(depths) > 1 else ""))
        words.append(str(name) if len(depths) > 1 else f"{name} ({depths.iloc[0]:.0f} blocks)")
    return handles, words


denseformer_tradeoff = Plot(
    reads=("test.csv", "run.json", "speed.csv"),
    runs=("*",),
    caption=(
        "Held-out loss against the speed of a full forward pass, after Fig. 3 of DenseFormer (arXiv:2402.02622): each "
        "point is a model, lines join the depths of one kind, and the dotted line is the Pareto front, models than "
        "which none is both faster and better. To see: whether the front is made of DenseFormers, and how much faster "
        "one is than a plain Transformer that reaches its loss, where a scale has one. Speeds are medians of "
        "repetitions on an otherwise idle machine. Right: perplexity and batches per second of Table 1."
    ),
    data=data,
    draw=draw,
)
