"""Held-out loss against cumulative training cost (Tokenformer, arXiv:2410.23168, Fig 3 and 4)."""

import re

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from pandas import DataFrame

from formerlab.figures._runs import (
    GROWN,
    TOKENFORMER,
    TRANSFORMER,
    by_run,
    chain,
    count_notes,
    held_out_losses,
    missing_note,
    parent,
    quantity,
)
from formerlab.figures._style import (
    BLACK,
    Label,
    aside,
    canvas,
    cut_bars,
    label_directly,
    look,
    loss_axis,
    mark_published,
    widen,
)
from formerlab.published import TOKENFORMER as PAPER
from formerlab.published import published
from formerlab.results import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("*",)
CATEGORY = "Tokenformer"
CAPTION = (
    "Held-out loss against training cost, after Fig. 3 and 4 of Tokenformer (arXiv:2410.23168). A grown model pays "
    "for all its ancestors: its cost is cumulative, in FLOPs of matrix products and attention. To see: growing is "
    "worth it where its line lies below and to the left of the models trained from scratch at the same cost. Right: "
    "the published points, in TPU hours read from the figure, for models a thousand times larger; their "
    "Transformers are single runs, so only the shape compares."
)

_CURVES = (
    ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens each"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens each"),
    ("TokenFormer", "60B", "Fig 3", "grown, 60B tokens per stage"),
    ("TokenFormer", "30B", "Fig 3", "grown, 30B tokens per stage"),
    ("TokenFormer", "15B", "Fig 3", "grown, 15B tokens per stage"),
)
"""Model family, tokens per model, figure with the costs, and the name of each published curve."""


def data(results: Results) -> DataFrame:
    """Return a row per plotted point; a grown model's series repeats its ancestors."""
    losses = held_out_losses(results, STUDY, RUNS)
    ours = [_series(losses)] if len(losses) else []
    return pd.concat([*ours, _published()], ignore_index=True)


def _series(losses: DataFrame) -> DataFrame:
    points = by_run(losses).set_index("run", drop=False)
    parents = {parent(losses, run) for run in points.index}
    series = []
    for name in (TRANSFORMER, TOKENFORMER):
        alike = points[points["variant"] == name]
        for tokens, group in alike.groupby("tokens"):
            label = name if alike["tokens"].nunique() == 1 else f"{name}, {quantity(float(str(tokens)))} tokens"
            series.append(group.assign(series=label))
    grown = points[points["variant"].str.startswith(GROWN)]
    for run in grown.index.difference(list(parents), sort=False):
        name = points.loc[run, "variant"]
        twins = (grown["variant"] == name) & ~grown["run"].isin(parents)
        label = name if twins.sum() == 1 else f"{name} ({run})"
        series.append(points.loc[chain(losses, run)].assign(series=label, variant=name))
    return pd.concat([frame.sort_values("flops_cumulative") for frame in series])


def _published() -> DataFrame:
    costs = published(PAPER, "Fig 3", "Fig 4").query("metric == 'training_cost'")
    perplexities = published(PAPER, "Tables 6-7", "Table 6").query("metric == 'perplexity'")
    reached = _values(perplexities)
    start = costs[costs["setting"].str.startswith("start")].iloc[0]
    rows = []
    for family, tokens, figure, name in _CURVES:
        places = costs[(costs["table_or_figure"] == figure) & costs["model"].str.startswith(family)]
        curve = [(model, hours) for (model, seen), hours in _values(places).items() if seen == tokens]
        points = [(model, hours, reached[model, tokens]) for model, hours in curve]
        if family == "TokenFormer":
            points.insert(0, (start["model"], float(start["value"]), reached[start["model"], "60B"]))
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


def draw(data: DataFrame) -> Figure:
    """Draw our points left and the published ones right."""
    ours, theirs = data[data["source"] == "ours"], data[data["source"] == "published"]
    notes = [
        *count_notes(ours),
        *missing_note(list(ours["series"]), [TRANSFORMER, TOKENFORMER, GROWN]),
        "Points of equal cost stand side by side. "
        "Published: perplexity on OpenWebText of 124M to 1.4B parameters; Transformer costs are those of single runs.",
    ]
    figure, (left, right) = canvas([4.6, 3.6], notes, right=[1.5, 0.2])
    _draw_ours(left, ours)
    _draw_published(right, theirs)
    return figure


def _draw_ours(axes: Axes, ours: DataFrame) -> None:
    labels = []
    groups = list(ours.groupby("series", sort=False))
    for place, (name, points) in enumerate(groups):
        colour, marker = look(points["variant"].iloc[0])
        grown = points["variant"].iloc[0].startswith(GROWN)
        style, layer = ("-", 2) if grown else ("--", 3)
        x = aside(points["flops_cumulative"], place, len(groups), 0.02, logarithm=True)
        y = points["loss_nats"]
        bars = np.nan_to_num([y - points["loss_nats_low"], points["loss_nats_high"] - y])
        axes.errorbar(x, y, bars, color=colour, marker=marker, linestyle=style, zorder=layer, capsize=2, elinewidth=1)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(name), colour))
    edge = max(label.x for label in labels)
    labels = [label._replace(x=edge) if label.x > edge / 1.3 else label for label in labels]  # clear of others' bars
    axes.set_xscale("log")
    axes.set_xlabel("cumulative training cost (FLOPs)")
    axes.set_title("Ours: points are finished models, lines join sizes or stages")
    cut_bars(axes, ours["loss_nats"], ours["loss_nats_low"], ours["loss_nats_high"])
    loss_axis(axes)
    widen(axes, 0.75)
    label_directly(axes, labels)


def _draw_published(axes: Axes, theirs: DataFrame) -> None:
    labels = []
    for name, points in theirs.groupby("series", sort=False):
        colour, marker = look(TRANSFORMER if str(name).startswith(TRANSFORMER) else "grown: random keys, tau sqrt(n)")
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
    mark_published(axes, "124M to 1.4B parameters")
    widen(axes, 0.65)
    label_directly(axes, labels, size=7)
