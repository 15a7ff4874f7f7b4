"""Loss of Transformers from scratch against FLOPs, tokens and parameters, and grown models beside their envelope."""

from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.runs import GROWN, TOKENFORMER, TRAINED_ON, n_seeds, quantity
from formerlab.report.scaling import FLOPS, PARAMETERS, TOKENS, scaling
from formerlab.report.style import BLACK, BLUE, GREY, Look, canvas, look, widen

_SIZES = tuple(
    Look(colour, marker)
    for colour, marker in zip(("#9E9AC8", "#6A51A3", "#3F007D", "#C994C7", "#DF65B0", "#980043"), "osD^vP", strict=True)
)
"""Of the sizes, or lengths, of Transformers from scratch, the smallest first; beyond these they begin again."""
_START = Look(BLUE, "s")
SHOWN = {
    f"{GROWN}: random keys, tau sqrt(n)": "grown: random keys, tau sqrt(n)",
    f"{GROWN}: zero keys, tau kept": "grown: zero keys, tau kept",
    f"{TOKENFORMER}, {TRAINED_ON}": "parent trained on",
}
"""The runs of chains that are drawn, and their labels; the table has the others."""


def draw(data: DataFrame) -> Figure:
    """Draw the envelope with the chains, then the same runs by tokens and by parameters."""
    scratch, grown = data[data["part"] == "scratch"], data[data["part"] == "chain"]
    notes = [
        f"{n_seeds(scratch['seeds'])} per run from scratch"
        + (f", {n_seeds(grown['seeds'])} per run of a chain" if len(grown) else "")
        + "; bars: 95 % Student t interval over seeds where there are several, dots: seeds.",
        "Grey: lower envelope of the runs from scratch. Dashed: power laws, fitted to the envelope (left) and to all "
        "runs from scratch (middle, right).",
    ]
    figure, (flops, tokens, size) = canvas([4.4, 3.0, 3.0], notes, height=3.8, right=[2.6, 1.1, 0.9])
    _draw_flops(flops, data)
    _draw_lines(tokens, data, TOKENS, PARAMETERS, "tokens")
    tokens.set_xlabel("tokens")
    _draw_lines(size, data, PARAMETERS, TOKENS, "size")
    size.set_xlabel("parameters without embedding")
    for axes, title in ((flops, "Grown models and the envelope"), (tokens, "By size"), (size, "By tokens")):
        axes.set_title(title)
        axes.set_ylabel("held-out loss (nats per token)")
    return figure


def _draw_flops(axes: Axes, data: DataFrame) -> None:
    scratch, chain, seeds = (data[data["part"] == part] for part in ("scratch", "chain", "seed"))
    shown = chain[chain["variant"].isin(SHOWN)]
    seeds = seeds[seeds["run"].isin({*scratch["run"], *shown["run"], *shown["parent"]})]
    lowest = scratch[scratch["lowest"].astype(bool)].sort_values(FLOPS)
    axes.plot(lowest[FLOPS], lowest["loss_nats"], color=GREY, linewidth=3, alpha=0.4)
    law = data[(data["part"] == "law") & (data.get("law") == "flops")]
    axes.plot(law[FLOPS], law["loss_nats"], "--", color=GREY, linewidth=1)
    axes.plot(seeds[FLOPS] * 0.97, seeds["loss_nats"], ".", color=GREY, alpha=0.7, markersize=3)
    for kind, (_, points) in zip(cycle(_SIZES), scratch.groupby(PARAMETERS), strict=False):
        _points(axes, points, FLOPS, kind)
    last = lowest.iloc[-1]
    labels = [Label(float(last[FLOPS]), float(last["loss_nats"]), "Transformers from scratch", BLACK)]
    for name, points in shown.groupby("variant", sort=False):
        kind = look(str(name))
        starts = chain.set_index("run").loc[points["parent"]]
        x, y = (np.stack([starts[column], points[column]]).astype(float) for column in (FLOPS, "loss_nats"))
        axes.plot(x, y, color=kind.colour, linewidth=1)
        _points(axes, points, FLOPS, kind)
        end = points.sort_values(FLOPS).iloc[-1]
        labels.append(Label(end[FLOPS], end["loss_nats"], SHOWN[str(name)], kind.colour))
    if len(starts := chain[chain["run"].isin(shown["parent"]) & chain["parent"].isna()]):
        _points(axes, starts, FLOPS, _START)
        labels.append(Label(starts[FLOPS].iloc[-1], starts["loss_nats"].iloc[-1], "before growth", _START.colour))
    axes.set_xlabel("cumulative FLOPs")
    _logarithmic(axes)
    widen(axes, 0.0)
    label_directly(axes, labels, size=7.5)


def _points(axes: Axes, points: DataFrame, x: str, kind: Look) -> None:
    ends = points["loss_nats_low"], points["loss_nats_high"]
    points_with_bars(axes, points[x], points["loss_nats"], ends, kind, linestyle="")


def _draw_lines(axes: Axes, data: DataFrame, x: str, series: str, law: str) -> None:
    scratch = data[data["part"] == "scratch"]
    fitted = data[(data["part"] == "law") & (data.get("law") == law)]
    labels = []
    for kind, (value, points) in zip(cycle(_SIZES), scratch.groupby(series), strict=False):
        points = points.sort_values(x)
        _points(axes, points, x, kind)
        line = fitted[np.isclose(fitted[series].astype(float), float(str(value)))]
        axes.plot(line[x], line["loss_nats"], "--", color=kind.colour, linewidth=1)
        end = points.iloc[-1]
        labels.append(Label(end[x], end["loss_nats"], quantity(float(str(value))), kind.colour))
    _logarithmic(axes)
    axes.xaxis.set_major_locator(MaxNLocator(1))
    ticks: list[float] = []
    apart = (scratch[x].max() / scratch[x].min()) ** 0.2  # nearer ones would stand on each other
    for value in sorted(scratch[x].unique()):
        if not ticks or value > apart * ticks[-1]:
            ticks.append(float(value))
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: quantity(tick)))
    axes.set_xticks([], minor=True)
    label_directly(axes, labels, size=7.5)


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
        "Transformers from scratch of three sizes and three lengths, every one with its own full schedule, against "
        "FLOPs, tokens and parameters, with power laws; and Tokenformers that grow or train on (arXiv:2410.23168), "
        "which pay for all their ancestors. To see: growing saves cost where a grown model lies below and to the left "
        "of the grey envelope; how much, at equal loss, is in the table tokenformer_envelope. The parent that was "
        "trained on is the other control: growing helps where the grown model is lower at equal FLOPs. Small models "
        "and few tokens: the slopes are those of this range."
    ),
    data=scaling,
    draw=draw,
)
