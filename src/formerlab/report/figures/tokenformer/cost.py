"""Held-out loss against training cost (Tokenformer, arXiv:2410.23168, Fig 1, 3 and 4).

The published costs are TPU hours read from the figures, the published perplexities those of Tables 6 and 7.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_at_edge, points_with_bars
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import count_notes
from formerlab.report.style import (
    BLACK,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    canvas,
    cut_bars,
    look,
    loss_axis,
    mark_published,
    widen,
)
from formerlab.report.tokenformer import ENVELOPE, SCRATCH, SERIES, Series, series_points, side_by_side
from formerlab.results.read import Results

STUDY = "tokenformer"
_WIDTH = 5.6
"""Inches of our panel."""


Curve = tuple[str, str, str, str]
"""Model family, tokens per model, figure with the costs, and the name of a published curve."""


def cost_points(results: Results, runs: Sequence[str], curves: Sequence[Curve], *, chains: bool) -> DataFrame:
    """Return a row per point, ours and those of the published `curves`: of whole `chains` of growth, or of stages."""
    ours = series_points(results, runs, chains=chains)
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
            | {"loss_nats": math.log(value)}
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


def draw_costs(data: DataFrame, column: str, label: str, title: str, notes: Sequence[str]) -> Figure:
    """Draw our points against a column, and the published ones against theirs; nats left, perplexity right."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    means, seeds = (ours[ours["part"] == part] for part in ("mean", "seed"))
    foot = [
        *count_notes(means),
        "Small dots beside the bars: seeds. Points that would hide each other stand side by side.",
    ]
    foot += notes
    figure, (left, right) = canvas([_WIDTH, 4.8], [" ".join(foot)], right=[1.6, 0.8], height=4.0)
    _draw_ours(left, means, seeds, column)
    left.set_xlabel(label)
    left.set_title(title)
    _draw_published(right, theirs)
    return figure


def _draw_ours(axes: Axes, means: DataFrame, seeds: DataFrame, column: str) -> None:
    labels = []
    known = {series.name: series for series in SERIES}
    places = side_by_side(means[means["series"] != ENVELOPE], column, 0.07)
    axes.set_xscale("log")
    axes.plot(0.97 * _across(seeds, places, column), seeds["loss_nats"], "o", color=GREY, markersize=2.5, alpha=0.7)
    for name, points in means.groupby("series", sort=False):
        x, y = _across(points, places, column), points["loss_nats"]
        if name == ENVELOPE:
            axes.plot(points[column], y, color=GREY, linewidth=4, alpha=0.4, zorder=0)
            labels.append(Label(points[column].iloc[-1], y.iloc[-1], str(name), GREY))
            continue
        series = known.get(str(name)) or Series(str(name), "", look(str(name)), "-")
        line = _join_parents(axes, points, means, places, series)
        low_high = points["loss_nats_low"], points["loss_nats_high"]
        face = {"markerfacecolor": "white"} if series.hollow else {}
        points_with_bars(axes, x, y, low_high, series.look, linestyle=line, **face)
        labels.append(Label(x.max(), y.to_numpy()[x.argmax()], series.name, series.look.colour))
    _mark_starts(axes, means[means["run"].isin(means["parent"]) & means["parent"].isna()], places)
    cut_bars(axes, means["loss_nats"], means["loss_nats_low"], means["loss_nats_high"])
    room = 0.25 + 0.053 * max(len(label.text) for label in labels)  # inches of the longest name
    widen(axes, room / (_WIDTH - room))
    loss_axis(axes)
    label_at_edge(axes, labels, size=7.5)


def _mark_starts(axes: Axes, starts: DataFrame, places: "pd.Series[float]") -> None:
    """Mark the models before growth, at which what grew and what was trained on begin."""
    low, high = map(math.log, axes.dataLim.intervalx)
    for run, loss in dict(zip(starts["run"], starts["loss_nats"], strict=True)).items():
        axes.plot(places[run], loss, "s", color=BLACK, zorder=3)
        at_the_edge = math.log(places[run]) < low + 0.15 * (high - low)
        beside: dict[str, Any] = {"xytext": (5, 4), "ha": "left"} if at_the_edge else {"xytext": (-6, 3), "ha": "right"}
        axes.annotate("before growth", (places[run], loss), textcoords="offset points", fontsize=7.5, **beside)


def _across(rows: DataFrame, places: "pd.Series[float]", column: str) -> "pd.Series[float]":
    return rows["run"].map(places).fillna(rows[column])


def _join_parents(axes: Axes, points: DataFrame, means: DataFrame, places: "pd.Series[float]", series: Series) -> str:
    """Join each run that started from one drawn here to it; return the line that is left to join the runs."""
    if series.grows or points["parent"].isna().all():
        return series.line
    heights = means.drop_duplicates("run").set_index("run")["loss_nats"]
    for run, parent in zip(points["run"], points["parent"], strict=True):
        if parent in places.index:
            ends = [parent, run]
            axes.plot(places[ends], heights[ends], series.line, color=series.look.colour, linewidth=1.2, zorder=1.5)
    return ""


_PRINTED = {"15B": ORANGE, "30B": VERMILION, "60B": PURPLE}
"""Colours of what grew, by tokens of a stage: those of half, the published and twice the tokens among ours."""


def _draw_published(axes: Axes, theirs: DataFrame) -> None:
    labels = []
    for name, points in theirs.groupby("series", sort=False):
        plain, tokens = str(name).startswith("Transformer"), str(name).split(", ")[1].split("B")[0] + "B"
        colour, marker = (GREY if tokens == "30B" else BLACK, "o") if plain else (_PRINTED[tokens], "^")
        x, y = points["tpu_v4_hours"], points["loss_nats"]
        line = "--" if plain else "-"
        axes.plot(x, y, color=colour, marker=marker, markerfacecolor="white", linestyle=line, linewidth=1)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), colour))
    axes.set_xscale("log")
    axes.set_xlabel("training cost (TPU v4 hours)")
    mark_published(axes, "124M to 1.4B parameters")
    widen(axes, 0.65)
    loss_axis(axes)
    label_at_edge(axes, labels, size=7.5)


_CURVES_COST = (
    ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "60B", "Fig 3", "grown, 60B a stage"),
    ("TokenFormer", "30B", "Fig 3", "grown, 30B a stage"),
    ("TokenFormer", "15B", "Fig 3", "grown, 15B a stage"),
)


def cost_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per plotted point; the chains of growth share their first model."""
    return cost_points(results, runs, _CURVES_COST, chains=True)


def draw_cost(data: DataFrame) -> Figure:
    """Draw our points, whose cost is that of whole chains, and the published ones."""
    notes = ["Published: OpenWebText perplexities; Transformer costs are those of single runs."]
    if (data["series"] == SCRATCH).any():
        notes.insert(0, "Tokenformers from scratch have the FLOPs of the chain: reuse alone separates the two.")
    return draw_costs(data, "flops_cumulative", "cumulative FLOPs", "Ours, whole chains", notes)


tokenformer_cost = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), in FLOPs of "
        "matrix products and attention; tokens are in the table tokenformer_table. A grown model pays for all its "
        "ancestors. Grey: lower envelope of Transformers from scratch, where a scale has those runs. "
        "Points are finished models; lines join sizes, and a model to the one that it started from. To see: growing is "
        "worth it where its point lies below and to the left of models trained from scratch, and below the parent "
        "trained on at equal FLOPs. Right: the published points, for models a thousand times larger; their "
        "Transformers are single runs, so only the shape compares."
    ),
    data=cost_data,
    draw=draw_cost,
)


_CURVES_STAGES = (
    ("Transformer", "300B", "Fig 4", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "30B", "Fig 4", "grown, 30B a stage"),
)


def stages_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per plotted point."""
    return cost_points(results, runs, _CURVES_STAGES, chains=False)


def draw_stages(data: DataFrame) -> Figure:
    """Draw our points, whose cost is that of the last stage alone, and the published ones."""
    note = "Published: OpenWebText perplexities."
    return draw_costs(data, "flops", "FLOPs of the stage", "Ours, one stage", [note])


tokenformer_stages = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("transformer-short-*", "grown-random-sqrt-3"),
    caption=(
        "Held-out loss against the cost of the last stage alone, after Fig. 4 of Tokenformer (arXiv:2410.23168): what "
        "a size costs once the smaller one is there. To see: a grown model against the Transformer on the tokens of a "
        "stage, which has seen nothing before. This is a claim about the stage; what the ancestors cost is in the "
        "figure of cumulative cost. Right: the published points, in TPU hours read from the figure."
    ),
    data=stages_data,
    draw=draw_stages,
)
