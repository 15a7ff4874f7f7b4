"""Differences of held-out losses against the tokens that both models saw, a point for each budget."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.marks import Label, label_at_edge, points_with_bars
from formerlab.report.runs import ends, n_seeds, quantity
from formerlab.report.style import GREY, Look, aside, canvas, widen
from formerlab.statistics import student


def difference(a: Mapping[int, float], b: Mapping[int, float], **shared: Any) -> list[dict[str, Any]]:
    """Return rows of a - b by seed: one of each seed (`part` is `seed`), and their mean with Student's interval."""
    by_seed = {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}
    if not by_seed:
        return []
    common = {"source": "ours"} | shared
    rows = [common | {"part": "seed", "seed": seed, "difference_nats": value} for seed, value in by_seed.items()]
    interval = student(list(by_seed.values()))
    return [*rows, common | {"part": "mean", "seeds": interval.seeds} | ends("difference_nats", interval)]


def draw(rows: DataFrame, looks: Mapping[str, Look], ylabel: str, notes: Sequence[str]) -> Figure:
    """Draw a line for each value of `series`: means with intervals, and the seeds beside them."""
    means = rows[rows["part"] == "mean"]
    spread = "bars: 95 % Student t interval over seeds, dots: seeds" if means["seeds"].max() > 1 else "no interval"
    figure, (axes,) = canvas([4.6], [f"{n_seeds(means['seeds'])} per point; {spread}.", *notes], right=2.4)
    labels, above_budget = [], Counter[float]()
    groups = list(rows.groupby("series", sort=False))
    for place, (name, group) in enumerate(groups):
        seeds, points = group[group["part"] == "seed"], group[group["part"] == "mean"].sort_values("tokens")
        kind = looks[str(name)]
        x = aside(points["tokens"], place, len(groups), 0.06, logarithm=True)
        low, high = points["difference_nats_low"], points["difference_nats_high"]
        points_with_bars(axes, x, points["difference_nats"], (low, high), kind)
        beside = aside(seeds["tokens"], place, len(groups), 0.06, logarithm=True) * 0.97
        axes.plot(beside, seeds["difference_nats"], ".", color=kind.colour, alpha=0.7, markersize=4)
        end = points.iloc[-1]
        if end["tokens"] < means["tokens"].max():  # a line from here to the edge would read as a trend
            of_budget = means[means["tokens"] == end["tokens"]]
            above = x.iloc[-1], of_budget[["difference_nats", "difference_nats_high"]].max(axis=None)
            offset = (0, 4 + 10 * above_budget[end["tokens"]])  # one above the other, where several end here
            axes.annotate(str(name), above, offset, textcoords="offset points", fontsize=8, color=kind.colour)
            above_budget[end["tokens"]] += 1
        else:
            labels.append(Label(x.iloc[-1], end["difference_nats"], str(name), kind.colour))
    _finish(axes, rows, ylabel)
    label_at_edge(axes, labels)
    return figure


def _finish(axes: Axes, rows: DataFrame, ylabel: str) -> None:
    axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("tokens of each run")
    axes.set_ylabel(ylabel)
    widen(axes, 0.0)
    axes.set_xticks(sorted(rows["tokens"].unique()), minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value))
