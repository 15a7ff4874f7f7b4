"""Held-out loss against training cost (Tokenformer, arXiv:2410.23168, Fig 1, 3 and 4).

The published costs are TPU hours read from the figures, the published perplexities those of Tables 6 and 7.
"""

import re
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge, label_directly, points_with_bars
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import count_notes, missing_note
from formerlab.report.style import BLACK, aside, canvas, cut_bars, look, loss_axis, mark_published, widen
from formerlab.report.tokenformer import SERIES, Series, series_points
from formerlab.results.read import Results

STUDY = "tokenformer"


Curve = tuple[str, str, str, str]
"""Model family, tokens per model, figure with the costs, and the name of a published curve."""


def cost_points(results: Results, runs: Sequence[str], curves: Sequence[Curve], *, chains: bool) -> DataFrame:
    """Return a row per point, ours and those of the published `curves`: of whole `chains` of growth, or of stages."""
    ours = series_points(results, runs, grown_from=1 if chains else 2)
    return pd.concat([ours, _published_points(curves, start=chains)], ignore_index=True)


def _published_points(curves: Sequence[Curve], *, start: bool) -> DataFrame:
    """Return a row per published point; with `start`, grown curves begin at the first model of the chain."""
    costs = published(PAPER, "Fig 3", "Fig 4").query("metric == 'training_cost'")
    reached = _values(published(PAPER, "Tables 6-7", "Table 6").query("metric == 'perplexity'"))
    first = costs[costs["setting"].str.startswith("start")].iloc[0]
    rows = []
    for family, tokens, figure, name in curves:
        places = costs[(costs["table_or_figure"] == figure) & costs["model"].str.startswith(family)]
        curve = [(model, hours) for (model, seen), hours in _values(places).items() if seen == tokens]
        points = [(model, hours, reached[model, tokens]) for model, hours in curve]
        if start and family == "TokenFormer":
            points.insert(0, (first["model"], float(first["value"]), reached[first["model"], "60B"]))
        rows += [
            {"source": "published", "series": name, "run": model, "tpu_v4_hours": hours, "perplexity": value}
            for model, hours, value in points
        ]
    return DataFrame(rows)


def _values(rows: DataFrame) -> dict[tuple[str, str], float]:
    """Return values by model and tokens."""
    cells = rows[["model", "setting", "value"]].itertuples(index=False, name=None)
    return {(model, _tokens(setting)): float(value) for model, setting, value in cells}


def _tokens(setting: str) -> str:
    """Return `30B` out of a setting that speaks of 30B tokens."""
    found = re.search(r"(\d+B) tokens", setting)
    return found[1] if found else ""


def draw_costs(data: DataFrame, columns: dict[str, str], title: str, notes: Sequence[str]) -> Figure:
    """Draw our points against each of three `columns` (name -> label of the axis), then the published ones."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    foot = [*count_notes(ours), *missing_note(list(ours["series"]), [series.name for series in SERIES]), *notes]
    figure, axes = canvas([3.0, 5.0, 3.0, 5.0], foot, right=[0.9, 0.75] * 2, columns=2)
    for place, (panel, (column, label)) in enumerate(zip(axes, columns.items(), strict=False)):
        _draw_ours(panel, ours, column, label, labelled=place == 1)
        panel.set_ylabel("held-out loss (nats per token)")
        panel.set_title(title)
    _draw_published(axes[-1], theirs)
    return figure


def _draw_ours(axes: Axes, ours: DataFrame, column: str, label: str, *, labelled: bool) -> None:
    labels = []
    known = {series.name: series for series in SERIES}
    groups = list(ours.groupby("series", sort=False))
    for place, (name, points) in enumerate(groups):
        series = known.get(str(name)) or Series(str(name), "", look(str(name)), "-")
        x = aside(points[column], place, len(groups), 0.015, logarithm=True)
        y = points["loss_nats"]
        ends = points["loss_nats_low"], points["loss_nats_high"]
        points_with_bars(axes, x, y, ends, series.look, linestyle=series.line)
        labels.append(Label(x.max(), y.to_numpy()[x.argmax()], series.name, series.look.colour))
    axes.set_xscale("log")
    axes.set_xlabel(label)
    cut_bars(axes, ours["loss_nats"], ours["loss_nats_low"], ours["loss_nats_high"])
    widen(axes, 1.0 if labelled else 0.0)
    if labelled:
        loss_axis(axes)
        label_at_edge(axes, labels)


def _draw_published(axes: Axes, theirs: DataFrame) -> None:
    labels = []
    for name, points in theirs.groupby("series", sort=False):
        plain = str(name).startswith("Transformer")
        colour, marker = look("Transformer" if plain else "grown: random keys, tau sqrt(n)")
        style = {"15B": ":", "60B": "-"}.get(str(name).split(", ")[1][:3], "--") if colour != BLACK else "--"
        x, y = points["tpu_v4_hours"], points["perplexity"]
        axes.plot(x, y, color=colour, marker=marker, markerfacecolor="white", linestyle=style, linewidth=1)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), colour))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(range(11, 19)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("training cost (TPU v4 hours)")
    axes.set_ylabel("perplexity")
    mark_published(axes, "124M to 1.4B")
    widen(axes, 0.6)
    label_directly(axes, labels, size=7)


_CURVES_COST = (
    ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "60B", "Fig 3", "grown, 60B a stage"),
    ("TokenFormer", "30B", "Fig 3", "grown, 30B a stage"),
    ("TokenFormer", "15B", "Fig 3", "grown, 15B a stage"),
)
_COLUMNS_COST = {
    "flops_cumulative": "cumulative FLOPs",
    "training_time_s_cumulative": "cumulative time on the device (s)",
    "tokens_cumulative": "cumulative tokens",
}


def cost_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per plotted point; the chains of growth share their first model."""
    return cost_points(results, runs, _CURVES_COST, chains=True)


def draw_cost(data: DataFrame) -> Figure:
    """Draw our points in three currencies, and the published ones."""
    note = "Published: OpenWebText perplexities; Transformer costs are those of single runs."
    return draw_costs(data, _COLUMNS_COST, "Ours, whole chains", [note])


tokenformer_cost = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), in FLOPs of "
        "matrix products and attention, in time of the device, and in tokens. A grown model pays for all its "
        "ancestors. Points are finished models, lines join sizes. To see: growing is worth it where its line lies "
        "below and to the left of models trained from scratch; the Tokenformers from scratch have the FLOPs of the "
        "chain, so what separates the two is reuse alone. Right: the published points, for models a thousand times "
        "larger; their Transformers are single runs, so only the shape compares."
    ),
    data=cost_data,
    draw=draw_cost,
)


_CURVES_STAGES = (
    ("Transformer", "300B", "Fig 4", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "30B", "Fig 4", "grown, 30B a stage"),
)
_COLUMNS_STAGES = {
    "flops": "FLOPs of the stage",
    "training_time_s": "time on the device (s)",
    "tokens": "tokens of the stage",
}


def stages_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per plotted point."""
    return cost_points(results, runs, _CURVES_STAGES, chains=False)


def draw_stages(data: DataFrame) -> Figure:
    """Draw our points in three currencies, and the published ones."""
    return draw_costs(data, _COLUMNS_STAGES, "Ours, one stage", ["Published: OpenWebText perplexities."])


tokenformer_stages = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss against the cost of the last stage alone, after Fig. 4 of Tokenformer (arXiv:2410.23168): what "
        "a size costs once the smaller one is there. To see: a grown model against the Transformer on the tokens of a "
        "stage, which has seen nothing before. This is a claim about the stage; what the ancestors cost is in the "
        "figure of cumulative cost. Right: the published points, in TPU hours read from the figure."
    ),
    data=stages_data,
    draw=draw_stages,
)
