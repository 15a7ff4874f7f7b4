"""Differences of held-out losses against the tokens that both models saw, a point for each budget."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.marks import points_with_bars
from formerlab.report.runs import ends, n_seeds, quantity
from formerlab.report.style import GREY, LEGEND_ON_GROUND, PUBLISHED_GROUND, PUBLISHED_INK, Look, aside, canvas, widen
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


def published_difference(nats: float, series: str) -> dict[str, Any]:
    """Return the row of a published difference, which is drawn as a line beside ours; `series` says whose it is."""
    return {"source": "published", "part": "published", "series": series, "difference_nats": nats}


def draw(rows: DataFrame, looks: Mapping[str, Look], ylabel: str, notes: Sequence[str]) -> Figure:
    """Draw a line for each value of `series`: means with intervals, the seeds beside them, and published values."""
    ours, printed = rows[rows["source"] == "ours"], rows[rows["source"] == "published"]
    means = ours[ours["part"] == "mean"]
    spread = "bars: 95 % Student t interval over seeds, dots: seeds" if means["seeds"].max() > 1 else "no interval"
    foot = [f"{n_seeds(means['seeds'])} per point; {spread}.", *notes]
    figure, (axes,) = canvas([4.6], foot, right=1.6 if len(printed) else 0.3)
    groups = list(ours.groupby("series", sort=False))
    for place, (name, group) in enumerate(groups):
        seeds, points = group[group["part"] == "seed"], group[group["part"] == "mean"].sort_values("tokens")
        kind = looks[str(name)]
        x = aside(points["tokens"], place, len(groups), 0.06, logarithm=True)
        low, high = points["difference_nats_low"], points["difference_nats_high"]
        points_with_bars(axes, x, points["difference_nats"], (low, high), kind, label=str(name))
        beside = aside(seeds["tokens"], place, len(groups), 0.06, logarithm=True) * 0.97
        axes.plot(beside, seeds["difference_nats"], ".", color=kind.colour, alpha=0.7, markersize=4)
    for _, value in printed.iterrows():
        _draw_published(axes, float(value["difference_nats"]), str(value["series"]))
    _finish(axes, ours, ylabel)
    _name_lines(axes, len(groups))
    return figure


def _draw_published(axes: Axes, value: float, series: str) -> None:
    """Draw a published difference as a line over all budgets, since its own is far beyond ours."""
    axes.axhline(value, color=PUBLISHED_INK, linestyle="-.", linewidth=1)
    axes.annotate(
        f"PUBLISHED, not ours:\n{textwrap.fill(f'{value:+.3f}, {series}', 21)}",
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        color=PUBLISHED_INK,
        bbox={"facecolor": PUBLISHED_GROUND, "edgecolor": "none", "pad": 2},
    )


def _name_lines(axes: Axes, count: int) -> None:
    """Write the names above all that is drawn: at the last budget only some of the lines have a point to stand by."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + (0.03 + 0.055 * -(-count // 2)) * (high - low))
    axes.legend(loc="upper left", ncols=2, fontsize=8, borderaxespad=0.2, columnspacing=1, **LEGEND_ON_GROUND)


def _finish(axes: Axes, rows: DataFrame, ylabel: str) -> None:
    axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("tokens of each run")
    axes.set_ylabel(ylabel)
    widen(axes, 0.0)
    axes.set_xticks(sorted(rows["tokens"].unique()), minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: quantity(float(f"{value:.2g}")))
