"""Growth by tokens against growth in width (Tokenformer, arXiv:2410.23168, Fig 7 and Table 8)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, curve_in_band, label_at_edge, points_with_bars
from formerlab.report.published import TOKENFORMER as PAPER
from formerlab.report.published import published
from formerlab.report.runs import ends, held_out, held_out_losses, minus, missing_note
from formerlab.report.style import GREY, aside, canvas, mark_published, widen
from formerlab.report.tokenformer import METHODS, STAGES, before_growth, by_step, means, seeds_note
from formerlab.results.read import Results
from formerlab.statistics import student

STUDY = "tokenformer"
_PRINTED = {
    "TokenFormer": "Tokenformer",
    "Net2Net (Transformer)": "Net2Net by padding",
    "HyperCloning (Transformer)": "HyperCloning",
}


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return rows: `curve` by step, `gain` by stage with that of every `seed`, and the published `gain`s."""
    losses = held_out_losses(results, STUDY, runs)
    if losses.empty:
        return DataFrame()
    curves = means(by_step(results, runs))
    first = {pattern.format(size=2): method for method, (_, pattern, _) in METHODS.items()}
    curves = curves[curves["run"].isin(first)].assign(part="curve")
    curves["method"] = curves["run"].map(first)
    return pd.concat([curves, gains(losses), published_gains()], ignore_index=True)


def gains(losses: DataFrame) -> DataFrame:
    """Return how much lower the held-out loss of each stage is than before growth, paired by seed, in nats.

    `part` is `gain` for the mean, `seed` for a row per seed.
    """
    rows = []
    for method, (_, pattern, _) in METHODS.items():
        start = held_out(losses, before_growth(losses, method))
        for size in STAGES:
            run = pattern.format(size=size)
            gained = minus(start, held_out(losses, run))
            if gained:
                interval = student(list(gained.values()))
                shared = {"source": "ours", "method": method, "run": run, "size": size}
                rows.append(shared | {"part": "gain"} | ends("gain_nats", interval) | {"seeds": interval.seeds})
                rows += [shared | {"part": "seed", "seed": seed, "gain_nats": gain} for seed, gain in gained.items()]
    return DataFrame(rows)


def published_gains() -> DataFrame:
    """Return the gains that the perplexities of Table 8 mean."""
    table = published(PAPER, "Table 8").query("metric == 'perplexity'")
    rows = []
    for name, group in table.groupby(table["model"].str.rsplit(" ", n=1).str[0], sort=False):
        values = group["value"].astype(float).to_list()
        for size, model, value in zip(STAGES, group["model"].to_list()[1:], values[1:], strict=True):
            shared = {"source": "published", "part": "gain", "method": _PRINTED[str(name)]}
            rows.append(shared | {"run": model, "size": size, "gain_nats": float(np.log(values[0] / value))})
    return DataFrame(rows).assign(gain_nats_low=np.nan, gain_nats_high=np.nan)


def draw(data: DataFrame) -> Figure:
    """Draw the first stage, our gains and the published ones."""
    ours = data[data["source"] == "ours"]
    notes = [seeds_note(ours, "bands and bars"), *missing_note(list(ours["method"].dropna().unique()), list(METHODS))]
    figure, (left, middle, right) = canvas([3.4, 3.6, 3.0], notes, right=[0.9, 0.9, 0.3])
    _draw_curves(left, data[data["part"] == "curve"])
    _draw_gains(middle, ours[ours["part"] == "gain"], ours[ours["part"] == "seed"])
    middle.set_title("Ours: gain over the own start")
    _draw_gains(right, data[data["source"] == "published"], data[:0])
    mark_published(right, "Table 8")
    return figure


def _draw_curves(axes: Axes, curves: DataFrame) -> None:
    for method, curve in curves.groupby("method", sort=False):
        curve_in_band(axes, curve, METHODS[str(method)][2])
    axes.set_title("Ours: first stage")
    axes.set_xlabel("step of the stage")
    axes.set_ylabel("validation loss (nats per token)")


def _draw_gains(axes: Axes, rows: DataFrame, seeds: DataFrame) -> None:
    labels = []
    groups = list(rows.groupby("method", sort=False))
    for place, (method, points) in enumerate(groups):
        kind = METHODS[str(method)][2]
        x, y = aside(points["size"].astype(float), place, len(groups), 0.03), points["gain_nats"]
        points_with_bars(axes, x, y, (points["gain_nats_low"], points["gain_nats_high"]), kind)
        own = seeds[seeds["method"] == method] if len(seeds) else seeds
        beside = aside(own["size"].astype(float), place, len(groups), 0.03) - 0.012
        axes.plot(beside, own["gain_nats"], "o", color=kind.colour, markersize=2.5, alpha=0.7)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(method), kind.colour))
    axes.axhline(0, color=GREY, linestyle="--", linewidth=1)
    axes.set_xticks([float(size) for size in STAGES])
    axes.set_xlim(STAGES[0] - 0.15, STAGES[-1] + 0.15)
    axes.set_xlabel("stage")
    axes.set_ylabel("loss before growth minus loss after (nats)")
    widen(axes, 0.75)
    label_at_edge(axes, labels, size=7.5)


tokenformer_rivals = Plot(
    reads=("eval.csv", "test.csv", "run.json"),
    runs=("tokenformer-1", "transformer-1", "long-*-chosen", "grown-random-sqrt-[23]", "net2net-*", "hypercloning-*"),
    needs=("net2net-*", "hypercloning-*"),
    caption=(
        "Growing a Tokenformer by tokens against growing a Transformer in width, after Fig. 7 and Table 8 of "
        "Tokenformer (arXiv:2410.23168). Left: validation loss of the first stage, from before its first step. "
        "Middle: what the held-out loss has gained on the family's own model before growth, after each stage, because "
        "the starts differ; small dots are seeds. To see: whose line lies highest has gained most from growing. "
        "Right: the same gains out of the published perplexities. Padding is the form of Net2Net that the paper used; "
        "Net2Net (2015) and HyperCloning copy units and keep the function where the factor is whole."
    ),
    data=data,
    draw=draw,
)
