"""Do the three ideas add up? Ours alone: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.combined import NAMES, PRUNED, cells, contrasts, levels
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly
from formerlab.report.runs import n_seeds
from formerlab.report.style import BLACK, BLUE, GREY, SKY, VERMILION, Look, canvas
from formerlab.results.read import Results

STUDY = "combined"
_LOOKS = {
    "linear-plain": Look(BLACK, "o"),
    "linear-dwa": Look(GREY, "s"),
    "pattention-plain": Look(BLUE, "^"),
    "pattention-dwa": Look(SKY, "D"),
}
LINEAR_BELOW_NATS = 0.002


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per cell and a row per contrast."""
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    return pd.concat([levels(by_seed), contrasts(by_seed)], ignore_index=True).assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw losses, costs and contrasts beside each other."""
    seeds = int(data["seeds"].max())
    bars = "bars: 95 % Student t interval over seeds" if seeds > 1 else "one seed, so no interval"
    notes = [
        f"{n_seeds([seeds])} per model, of the same windows; {bars}. "
        f"Middle and right: linear within {LINEAR_BELOW_NATS:g} nats of zero, logarithmic beyond."
    ]
    figure, (left, middle, right) = canvas([2.3, 2.3, 3.2], notes, height=3.6, right=[1.45, 3.0, 0.3])
    found = data[data["kind"] == "cell"]
    _draw_losses(left, found[found["policy"] == "full"])
    _draw_costs(middle, found[found["policy"] != "full"])
    _draw_contrasts(right, data[data["kind"] != "cell"])
    return figure


def _draw_losses(axes: Axes, rows: DataFrame) -> None:
    labels = []
    for projection, colour, aside in (("linear", BLACK, -0.03), ("pattention", BLUE, 0.03)):
        points = rows[rows["run"].isin([f"{projection}-plain", f"{projection}-dwa"])]
        places = [aside + (0.0 if run.endswith("plain") else 1.0) for run in points["run"]]
        marker = _LOOKS[f"{projection}-plain"].marker
        axes.errorbar(places, points["loss_nats"], _bars(points, "loss_nats"), color=colour, marker=marker, capsize=2)
        labels.append(Label(places[-1], points["loss_nats"].iloc[-1], projection.capitalize(), colour))
    axes.set_xticks([0, 1], ["plain", "DWA"])
    axes.set_xlim(-0.25, 1.15)
    axes.set_xlabel("depth mixer")
    axes.set_ylabel("held-out loss, whole cache (nats per token)")
    label_directly(axes, labels)


def _draw_costs(axes: Axes, rows: DataFrame) -> None:
    labels = []
    for place, (run, look) in enumerate(_LOOKS.items()):
        points = rows[rows["run"] == run].set_index("policy").loc[list(PRUNED)]
        x = np.arange(len(PRUNED)) + 0.06 * (place - 1.5)
        axes.errorbar(
            x, points["cost_nats"], _bars(points, "cost_nats"), color=look.colour, marker=look.marker, capsize=2
        )
        labels.append(Label(x[-1], points["cost_nats"].iloc[-1], NAMES[run], look.colour))
    axes.axhline(0, color=BLACK, linestyle="--", linewidth=1)
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW_NATS)
    axes.set_xticks(range(len(PRUNED)), list(PRUNED.values()))
    axes.set_xlim(-0.3, 1.2)
    axes.set_xlabel("cache policy, 40 % of the tokens")
    axes.set_ylabel("loss above that of the whole cache (nats per token)")
    label_directly(axes, labels)


def _draw_contrasts(axes: Axes, rows: DataFrame) -> None:
    places = np.arange(len(rows))[::-1]
    colours = [BLACK if kind == "main" else VERMILION for kind in rows["kind"]]
    bars = _bars(rows, "effect_nats")
    for place, value, low, high, colour in zip(places, rows["effect_nats"], *bars, colours, strict=True):
        axes.errorbar(value, place, xerr=[[low], [high]], color=colour, marker="o", capsize=2)
    axes.axvline(0, color=BLACK, linestyle="--", linewidth=1)
    axes.set_xscale("symlog", linthresh=LINEAR_BELOW_NATS)
    axes.margins(x=0.08)
    limits = axes.get_xlim()
    decades = [sign * 10.0**power for sign in (-1, 1) for power in (-2, -1, 0)]
    axes.set_xticks([tick for tick in (0.0, *decades) if limits[0] <= tick <= limits[1]])  # smaller ones would overlap
    axes.set_yticks(places, list(rows["name"]))
    for tick, colour in zip(axes.get_yticklabels(), colours, strict=True):
        tick.set_color(colour)
    axes.set_xlabel("effect on the loss (nats per token); below zero is better")
    axes.set_title("main effects (black) and interactions")


def _bars(rows: DataFrame, name: str) -> np.ndarray:
    """Return the lengths of the bars down and up; none where there is no interval."""
    return np.nan_to_num([rows[name] - rows[f"{name}_low"], rows[f"{name}_high"] - rows[name]])


combined_effects = Plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Linear or Pattention x plain or DWA x Full, H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, "
        "at equal tokens and about equal parameters. Left: held-out loss with the whole cache; parallel lines mean "
        "that Pattention and DWA add up. Middle: what each policy costs each model. Right: the factorial contrasts. "
        "To see: an interaction whose bar crosses zero gives no sign that one idea changes what another brings, at "
        "this precision. Eleven intervals are not corrected for their number. No paper combines the three; nothing is "
        "published."
    ),
    data=data,
    draw=draw,
)
