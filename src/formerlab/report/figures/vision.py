"""Figures of the vision study (Tokenformer, arXiv:2410.23168)."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.rates import draw as draw_rates
from formerlab.report.rates import searches
from formerlab.report.runs import n_seeds
from formerlab.report.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
    look,
    mark_published,
)
from formerlab.report.vision import COMPARED, NAMES, accuracies, against, by_run, published_accuracies
from formerlab.results.read import Results

STUDY = "vision"


class Group(NamedTuple):
    """Runs that answer one question."""

    table: str
    """The published table beside them; empty where there is none."""
    colour: str
    words: str
    """What the foot of the figure says of the colour."""
    runs: tuple[str, ...]


GROUPS = {
    "sizes": Group("Table 2", BLACK, "black models", ("vit", "vit-wider", "tokenformer-matched", "tokenformer")),
    "scores": Group("Table 4", BLUE, "blue scores and their norm", ("score-exp-l1", "score-gelu-l1", "score-gelu-l2")),
    "norms": Group("Table 5", GREEN, "green norms of blocks", ("norm-bias", "norm-gain-bias")),
    "growth": Group(
        "",
        ORANGE,
        "orange growth",
        ("tokenformer-small", "tokenformer-short", "trained-on", "grown-random-sqrt", "grown-zero-keep"),
    ),
    "depth": Group("", PURPLE, "purple averages over depth", ("vit-dwa", "tokenformer-dwa")),
}

_COLUMNS = (
    "source",
    "part",
    "group",
    "run",
    "seed",
    "model",
    "top1_percent",
    "top1_percent_low",
    "top1_percent_high",
    "seeds",
    "diverged",
)


def accuracy_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per run and a row per published value, by group; `part` is `mean`, or `seed` for a row per seed."""
    measured = accuracies(results, runs)
    frames = []
    if len(measured):
        groups = {run: name for name, group in GROUPS.items() for run in group.runs}
        ours = by_run(measured).assign(part="mean")
        seeds = measured[["run", "seed", "top1_percent"]].merge(ours[["source", "run", "model"]], on="run")
        ours = pd.concat([ours, seeds.assign(part="seed")], ignore_index=True)
        frames.append(ours.assign(group=ours["run"].map(groups).fillna("other")))
    for name, group in GROUPS.items():
        if group.table:
            frames.append(published_accuracies(group.table).assign(source="published", group=name))
    return pd.concat(frames, ignore_index=True).reindex(columns=list(_COLUMNS))


def draw_accuracy(data: DataFrame) -> Figure:
    """Draw a line per run, ours left and the published right."""
    ours, theirs = (data[data["source"] == source] for source in ("ours", "published"))
    each, ours = ours[ours["part"] == "seed"], ours[ours["part"] == "mean"]
    seeds = int(ours["seeds"].max())
    spread = "bars: 95 % Student t interval over seeds" if seeds > 1 else "one seed: no interval"
    notes = [f"{n_seeds([seeds])} per point; {spread}; small dots: seeds. Published: one run each, ImageNet-1K."]
    diverged = ours[ours["diverged"] > 0]["run"]
    if len(diverged):
        notes.append(f"Diverged, counted as a uniform guess: {', '.join(diverged)}.")
    longest = 0.075 * max(map(len, ours["model"]))
    shown = [group.words for name, group in GROUPS.items() if name in set(data["group"])]
    notes.append(f"Colours: {', '.join(shown)}.")
    figure, (left, right) = canvas(
        [3.4, 2.6], notes, height=0.27 * max(len(ours), len(theirs)) + 0.4, right=[longest + 0.2, 3.0]
    )
    _panel(left, ours, each, "Ours")
    _panel(right, theirs, each[:0], "")
    mark_published(right, "ImageNet-1K")
    return figure


def _panel(axes: Axes, rows: DataFrame, seeds: DataFrame, title: str) -> None:
    order = {run: place for place, run in enumerate(NAMES)}
    colours = {name: group.colour for name, group in GROUPS.items()}
    rows = rows.assign(
        place=rows["run"].map(order).fillna(99), rank=rows["group"].map({g: i for i, g in enumerate(GROUPS)})
    )
    rows = rows.sort_values(["rank", "place"], ignore_index=True)
    heights = np.arange(len(rows))[::-1]
    for height, row in zip(heights, rows.to_dict("records"), strict=True):
        value, colour = row["top1_percent"], colours.get(row["group"]) or look(row["model"].rpartition(" (")[0]).colour
        bar = np.nan_to_num([[value - row["top1_percent_low"]], [row["top1_percent_high"] - value]])
        face = "white" if row["source"] == "published" else colour
        axes.errorbar(value, height, xerr=bar, color=colour, marker="o", markerfacecolor=face, capsize=2, elinewidth=1)
        own = seeds.loc[seeds["run"] == row["run"], "top1_percent"]
        axes.plot(own, np.full(len(own), height - 0.25), "o", color=colour, markersize=2.5, alpha=0.7)
        axes.annotate(
            row["model"], (1.02, height), xycoords=("axes fraction", "data"), va="center", fontsize=7.5, color=colour
        )
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_yticks([])
    axes.set_xlabel("top-1 accuracy (%)")
    if title:
        axes.set_title(title)


vision_accuracy = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    caption=(
        "Top-1 accuracy on test images of every run, after Tables 2, 4 and 5 of Tokenformer (arXiv:2410.23168). To "
        "see: whether a Tokenformer with the parameters of the ViT reaches it, whether exp is worse than GeLU, and "
        "whether parameters of the norms matter. Right: the published values on ImageNet-1K, single runs: compare "
        "differences, never levels."
    ),
    data=accuracy_data,
    draw=draw_accuracy,
)


_PARENT = "tokenformer-small"
_LOOKS = {
    "grown-random-sqrt": (VERMILION, "^", "grown: random keys, tau sqrt(n)\n(the published way)"),
    "grown-zero-keep": (GREEN, "D", "grown: zero keys, tau kept"),
    "trained-on": (BLUE, "*", "the parent, trained on\n(not grown, equal FLOPs)"),
    "tokenformer-short": (SKY, "s", "from scratch,\nsteps of the stage alone"),
    "tokenformer": (BLACK, "s", "from scratch, full steps"),
}


def growth_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return how many points of top-1 each run is above the parent; `part` is `mean`, or `seed` for a row per seed."""
    measured = accuracies(results, runs)
    if measured.empty or _PARENT not in set(measured["run"]):
        return DataFrame()
    level = measured[measured["run"] == _PARENT].set_index("seed")["top1_percent"]
    rows = []
    for run in [run for run in _LOOKS if run in set(measured["run"])]:
        above = against(results, measured, run, _PARENT)
        shared = {"source": "ours", "run": run, "model": _LOOKS[run][2], "parent": _PARENT}
        own = measured[measured["run"] == run]
        cost = float(own["flops_cumulative"].mean())
        rows.append(shared | above | {"part": "mean", "flops_cumulative": cost, "seeds": len(own)})
        found = own.assign(above=own["top1_percent"] - own["seed"].map(level)).dropna(subset="above")
        rows += [
            shared | {"part": "seed", "seed": seed, COMPARED: value}
            for seed, value in found[["seed", "above"]].itertuples(index=False, name=None)
        ]
    return DataFrame(rows)


def draw_growth(data: DataFrame) -> Figure:
    """Draw how far every run is above the parent, the best on top."""
    means = data[data["part"] == "mean"].sort_values(COMPARED, ignore_index=True)
    seeds = int(means["seeds"].max())
    spread = "bars: 95 % Student t interval over seeds" if seeds > 1 else "bars: 95 % bootstrap over images"
    notes = [
        f"{n_seeds([seeds])}, paired by seed; {spread}; small dots: seeds.",
        "TFLOP: of all training behind a model, its parent's included.",
    ]
    figure, (room, axes) = canvas([1.15, 3.8], notes, height=0.62 * len(means) + 0.5, right=[0.3, 0.4])
    room.remove()  # it kept the place of the names
    for place, run in enumerate(means["run"]):
        row, own = means[means["run"] == run], data[(data["run"] == run) & (data["part"] == "seed")][COMPARED]
        colour, marker, _ = _LOOKS[run]
        bars = np.nan_to_num([row[COMPARED] - row[f"{COMPARED}_low"], row[f"{COMPARED}_high"] - row[COMPARED]])
        axes.errorbar(row[COMPARED], [place], xerr=bars, color=colour, marker=marker, markersize=7, capsize=3)
        axes.plot(own, np.full(len(own), place - 0.25), "o", color=colour, markersize=3, alpha=0.7)
    axes.axvline(0, color=BLACK, linewidth=1)
    costs = [f"{model}\n{cost / 1e12:.2g} TFLOP" for model, cost in means[["model", "flops_cumulative"]].to_numpy()]
    axes.set_yticks(range(len(means)), costs)
    for tick, run in zip(axes.get_yticklabels(), means["run"], strict=True):
        tick.set_color(_LOOKS[run][0])
    axes.set_ylim(-0.6, len(means) - 0.4)
    axes.grid(visible=False, axis="y")
    axes.set_title("Accuracy above the parent's (line: the parent)")
    axes.set_xlabel("top-1 on test images, points above the parent")
    return figure


vision_growth = Plot(
    reads=("test.csv", "run.json"),
    runs=("tokenformer-small", "tokenformer-short", "tokenformer", "grown-*", "trained-on"),
    needs=("grown-*",),
    caption=(
        "Accuracy on test images of Tokenformers that grew, minus that of the model they grew from; beside them that "
        "model trained on for the FLOPs of the stage, and Tokenformers of the grown size from scratch. To see: growing "
        "has helped where a grown model is right of the parent trained on. Nobody has published this for images; the "
        "method is that of Tokenformer (arXiv:2410.23168, section 3.3)."
    ),
    data=growth_data,
    draw=draw_growth,
)


vision_rates = Plot(
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Validation loss at the end of training, in nats per image, against the peak learning rate, for every image "
        "model whose rate was searched: runs that differ in nothing else. To see: each ringed rate has a higher and a "
        "lower one beside it in the grid; where it has not, the foot of the figure says so, and no comparison at that "
        "rate is fair."
    ),
    data=partial(searches, study="vision"),
    draw=draw_rates,
)
