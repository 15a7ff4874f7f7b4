"""Loss of Transformers from scratch against FLOPs, tokens and parameters, and grown models beside their envelope."""

from collections.abc import Sequence
from itertools import cycle
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.runs import GROWN, TOKENFORMER, TRAINED_ON, n_seeds, quantity
from formerlab.report.scaling import FLOPS, PARAMETERS, STUDY, TOKENS, scaling
from formerlab.report.style import BLACK, GREY, LEGEND_ON_GROUND, Look, canvas, look, widen
from formerlab.report.tokenformer import equal_to_grown, side_by_side
from formerlab.results.read import Results

_SIZES = tuple(
    Look(colour, marker)
    for colour, marker in zip(("#9E9AC8", "#6A51A3", "#3F007D", "#C994C7", "#DF65B0", "#980043"), "osD^vP", strict=True)
)
"""Of the sizes of Transformers from scratch, the smallest first; beyond these they begin again."""
_START = Look(BLACK, "s")
SHOWN = {
    f"{GROWN}: random keys, tau sqrt(n)": "grown: random keys, tau sqrt(n)",
    f"{GROWN}: zero keys, tau kept": "grown: zero keys, tau kept",
    f"{TOKENFORMER}, {TRAINED_ON}": "parent trained on",
}
"""The runs of chains that are drawn, and their labels; the table has the others."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the rows of `scaling` with each run's peak rate, and what a parent trained on shares with what grew."""
    rows = scaling(results, runs)
    if rows.empty:
        return rows
    records = results.runs(STUDY, runs).drop_duplicates("run").set_index("run")
    chain = rows[rows["part"] == "chain"].set_index("run")
    trained = [run for run in chain.index if str(chain.loc[run, "variant"]).endswith(TRAINED_ON)]
    rows["equal"] = rows["run"].map({run: equal_to_grown(chain, run) for run in trained})
    return rows.assign(lr=rows["run"].map(records["spec.optimizer.lr"]))


def draw(data: DataFrame) -> Figure:
    """Draw the envelope with the chains, then the same runs by tokens and by parameters."""
    scratch, grown = data[data["part"] == "scratch"], data[data["part"] == "chain"]
    notes = [
        f"{n_seeds(scratch['seeds'])} per run from scratch"
        + (f", {n_seeds(grown['seeds'])} per run of a chain" if len(grown) else "")
        + "; bars: 95 % Student t interval over seeds where there are several, dots: seeds.",
        "Grey: lower envelope of the runs from scratch. Dashed: power laws, fitted to the envelope (left) and to all "
        "runs from scratch (middle; right, for the lengths that several sizes have). Points that would hide each other "
        "stand side by side.",
    ]
    figure, (flops, tokens, size) = canvas([4.4, 3.0, 3.0], [*notes, *_rate_note(scratch)], 3.8, [2.8, 1.1, 0.9])
    sizes = dict(zip(sorted(scratch[PARAMETERS].unique()), cycle(_SIZES), strict=False))
    lengths = looks_of_lengths(scratch[TOKENS])
    _draw_flops(flops, data, sizes)
    _draw_lines(tokens, data, TOKENS, PARAMETERS, "tokens", sizes)
    tokens.set_xlabel("tokens")
    _draw_lines(size, data, PARAMETERS, TOKENS, "size", lengths)
    size.set_xlabel("parameters without embedding")
    _explain(flops, sizes, "lower left")
    _explain(tokens, sizes, "upper right")
    titles = ("Grown models and the envelope", "From scratch: each size against tokens")
    for axes, title in zip((flops, tokens, size), (*titles, "From scratch: each length against size"), strict=True):
        axes.set_title(title)
        axes.set_ylabel("held-out loss (nats per token)")
    return figure


def _rate_note(scratch: DataFrame) -> list[str]:
    """Say that the length of a run did not choose its rate, where it did not."""
    rates = scratch.groupby(PARAMETERS)["lr"].unique()
    if (rates.map(len) > 1).any() or (scratch.groupby(PARAMETERS)[TOKENS].nunique() < 2).any():
        return []
    said = ", ".join(f"{rate[0]:g} for {_short(float(str(size)), 3)}" for size, rate in rates.items())
    return [f"Each size from scratch has one peak learning rate at all its lengths: {said} parameters."]


def looks_of_lengths(tokens: "pd.Series[float]") -> dict[float, Look]:
    """Return a look for each length of training, the darker the shorter; no two have the same colour."""
    lengths = sorted(tokens.unique())
    colours = [to_hex(colour) for colour in colormaps["plasma"](np.linspace(0, 0.8, len(lengths)))]
    return {length: Look(*look) for length, look in zip(lengths, zip(colours, cycle("osD^vPX")), strict=True)}


def _explain(axes: Axes, sizes: dict[float, Look], corner: Literal["lower left", "upper right"]) -> None:
    """Say which mark is which size, in a corner that falling losses leave empty."""
    handles = [
        Line2D([], [], color=kind.colour, marker=kind.marker, linestyle="", label=f"{_short(size, 3)} parameters")
        for size, kind in sizes.items()
    ]
    legend = axes.legend(handles=handles, title="from scratch:", loc=corner, fontsize=7.5, **LEGEND_ON_GROUND)
    legend.get_title().set_fontsize(7.5)


def _draw_flops(axes: Axes, data: DataFrame, sizes: dict[float, Look]) -> None:
    scratch, chain, seeds = (data[data["part"] == part] for part in ("scratch", "chain", "seed"))
    shown = chain[chain["variant"].isin(SHOWN)]
    seeds = seeds[seeds["run"].isin({*scratch["run"], *shown["run"], *shown["parent"]})]
    lowest = scratch[scratch["lowest"].astype(bool)].sort_values(FLOPS)
    drawn = [scratch, chain[chain["run"].isin({*shown["run"], *shown["parent"]})]]
    places = side_by_side(pd.concat(drawn), FLOPS, 0.05)
    data = data.assign(**{FLOPS: data["run"].map(places).fillna(data[FLOPS])})
    axes.plot(lowest[FLOPS], lowest["loss_nats"], color=GREY, linewidth=3, alpha=0.4)
    law = data[(data["part"] == "law") & (data.get("law") == "flops")]
    axes.plot(law[FLOPS], law["loss_nats"], "--", color=GREY, linewidth=1)
    axes.plot(seeds["run"].map(places) * 0.98, seeds["loss_nats"], ".", color=GREY, alpha=0.7, markersize=3)
    for size, points in data[data["part"] == "scratch"].groupby(PARAMETERS):
        _points(axes, points, FLOPS, sizes[float(str(size))])
    last = lowest.iloc[-1]
    labels = [Label(float(last[FLOPS]), float(last["loss_nats"]), "Transformers from scratch,\nlower envelope", GREY)]
    placed = data[data["part"] == "chain"].set_index("run", drop=False)
    shown = placed[placed["run"].isin(shown["run"])]
    for (name, equal), points in shown.groupby(["variant", shown["equal"].fillna("")], sort=False):
        kind, hollow = look(str(name)), equal == "tokens"
        starts = placed.loc[points["parent"]]
        x, y = (np.stack([starts[column], points[column]]).astype(float) for column in (FLOPS, "loss_nats"))
        axes.plot(x, y, "--" if hollow else "-", color=kind.colour, linewidth=1)
        _points(axes, points, FLOPS, kind, hollow=hollow)
        end = points.sort_values(FLOPS).iloc[-1]
        words = SHOWN[str(name)] + (f", equal {equal}" if equal else "")
        labels.append(Label(end[FLOPS], end["loss_nats"], words, kind.colour))
    if len(starts := placed[placed["run"].isin(shown["parent"]) & placed["parent"].isna()]):
        _points(axes, starts, FLOPS, _START)
        labels.append(Label(starts[FLOPS].iloc[-1], starts["loss_nats"].iloc[-1], "before growth", _START.colour))
    axes.set_xlabel("cumulative FLOPs")
    _logarithmic(axes)
    widen(axes, 0.0)
    label_directly(axes, labels, size=7.5)


def _points(axes: Axes, points: DataFrame, x: str, kind: Look, *, hollow: bool = False) -> None:
    ends = points["loss_nats_low"], points["loss_nats_high"]
    face = {"markerfacecolor": "white"} if hollow else {}
    points_with_bars(axes, points[x], points["loss_nats"], ends, kind, linestyle="", **face)


def _draw_lines(axes: Axes, data: DataFrame, x: str, series: str, law: str, looks: dict[float, Look]) -> None:
    """Draw the runs from scratch against x, those that share a value of `series` in one look, with their laws."""
    scratch = data[data["part"] == "scratch"]
    fitted = data[(data["part"] == "law") & (data.get("law") == law)]
    labels: list[Label] = []
    places = side_by_side(scratch, x, 0.12)
    for value, kind in looks.items():
        points = scratch[scratch[series] == value].sort_values(x)
        points = points.assign(**{x: points["run"].map(places)})
        _points(axes, points, x, kind, hollow=series == TOKENS)
        line = fitted[np.isclose(fitted[series].astype(float), value)]
        axes.plot(line[x], line["loss_nats"], "--", color=kind.colour, linewidth=1)
        if series == TOKENS:  # the sizes have a legend, for a name beside a point would stand on another one
            labels.append(
                Label(points[x].iloc[-1], points["loss_nats"].iloc[-1], f"{_short(value)} tokens", kind.colour)
            )
    _logarithmic(axes)
    axes.xaxis.set_major_locator(MaxNLocator(1))
    ticks: list[float] = []
    apart = (scratch[x].max() / scratch[x].min()) ** 0.2  # nearer ones would stand on each other
    for value in sorted(scratch[x].unique()):
        if not ticks or value > apart * ticks[-1]:
            ticks.append(float(value))
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: _short(tick, 2 if x == TOKENS else 3)))
    axes.set_xticks([], minor=True)
    if labels:
        label_directly(axes, labels, size=7.5)


def _short(value: float, digits: int = 2) -> str:
    return quantity(float(f"{value:.{digits}g}"))


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


tokenformer_scaling = Plot(
    reads=("test.csv", "run.json"),
    runs=("*",),
    needs=("envelope-*",),
    caption=(
        "Tokenformers that grow or train on beside Transformers from scratch (arXiv:2410.23168). Those are of three "
        "sizes and three lengths, every one with its own full schedule, against FLOPs, tokens and parameters, with "
        "power laws; these pay for all their ancestors. To see: growing saves cost where a grown model lies below and "
        "to the left of the grey envelope; how much, at equal loss, is in the table tokenformer_envelope. The parent "
        "that was trained on is the other control: growing helps where the grown model is lower at equal FLOPs. Small "
        "models and few tokens: the slopes are those of this range."
    ),
    data=data,
    draw=draw,
)
