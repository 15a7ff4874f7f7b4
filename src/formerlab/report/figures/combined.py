"""Do the three ideas add up? Ours alone: arXiv:2410.23168 x arXiv:2402.02622 x arXiv:2407.20485."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from formerlab.report.combined import NAMES, PRUNED, cells, contrasts, levels
from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
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


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return a row per cell and per contrast, then the same of every `seed`."""
    by_seed = cells(results, runs)
    if not by_seed:
        return DataFrame()
    parts = [(by_seed, np.nan), *(({seed: found}, float(seed)) for seed, found in by_seed.items())]
    frames = [frame.assign(seed=seed) for some, seed in parts for frame in (levels(some), contrasts(some))]
    return pd.concat(frames, ignore_index=True).assign(source="ours")


def draw(data: DataFrame) -> Figure:
    """Draw what the models lose and the contrasts of that; below, for each policy, what pruning costs and the same."""
    seeds = int(data["seeds"].max())
    bars = "bars: 95 % Student t interval over seeds" if seeds > 1 else "one seed, so no interval"
    notes = [f"{n_seeds([seeds])} per model, of the same windows; {bars}; small dots: seeds."]
    rows = 1 + len(PRUNED)
    figure, axes = canvas([2.7, 3.4] * rows, notes, height=2.3, right=[2.6, 0.3] * rows, columns=2)
    found, effects = data[data["kind"] == "cell"], data[data["kind"] != "cell"]
    of_cost = effects["name"].str.contains("|".join(PRUNED.values()))
    _draw_losses(axes[0], found[found["policy"] == "full"])
    _draw_contrasts(axes[1], effects[~of_cost], "Main effects on this loss (black) and interactions")
    for (policy, name), left, right in zip(PRUNED.items(), axes[2::2], axes[3::2], strict=True):
        _draw_costs(left, found[found["policy"] == policy], name)
        of_policy = effects[effects["name"].str.contains(name)]
        _draw_contrasts(right, of_policy, f"Mean cost of {name} (black) and interactions")
    return figure


def _draw_losses(axes: Axes, rows: DataFrame) -> None:
    labels = []
    for projection, aside in (("linear", -0.03), ("pattention", 0.03)):
        look = _LOOKS[f"{projection}-plain"]
        points = rows[rows["run"].isin([f"{projection}-plain", f"{projection}-dwa"])]
        points = points.assign(place=[aside + (0.0 if run.endswith("plain") else 1.0) for run in points["run"]])
        last = _draw_points(axes, points, "loss_nats", look, "-")
        labels.append(Label(*last, projection.capitalize(), look.colour))
    axes.set_xticks([0, 1], ["plain", "DWA"])
    axes.set_xlim(-0.25, 1.15)
    axes.set_xlabel("depth mixer")
    axes.set_ylabel("held-out loss (nats per token)")
    axes.set_title("Loss with the whole cache")
    label_directly(axes, labels)


def _draw_costs(axes: Axes, rows: DataFrame, policy: str) -> None:
    for place, (run, look) in enumerate(_LOOKS.items()):
        _draw_points(axes, rows[rows["run"] == run].assign(place=float(place)), "cost_nats", look, "")
    axes.axhline(0, color=BLACK, linewidth=1)
    axes.set_xticks(range(len(_LOOKS)), [NAMES[run].replace(", ", ",\n") for run in _LOOKS], fontsize=7.5)
    axes.set_xlim(-0.5, len(_LOOKS) - 0.5)
    axes.set_ylabel("loss added (nats per token)")
    axes.set_title(f"Cost of pruning: {policy}, 40 % of the tokens kept")


def _draw_points(axes: Axes, rows: DataFrame, name: str, look: Look, line: str) -> tuple[float, float]:
    """Draw means with bars, and seeds beside them; return the last mean."""
    means, seeds = rows[rows["seed"].isna()], rows[rows["seed"].notna()]
    ends = means[f"{name}_low"], means[f"{name}_high"]
    points_with_bars(axes, means["place"], means[name], ends, look, linestyle=line)
    axes.plot(seeds["place"] - 0.03, seeds[name], "o", color=look.colour, markersize=2.5, alpha=0.7)
    return float(means["place"].iloc[-1]), float(means[name].iloc[-1])


def _draw_contrasts(axes: Axes, rows: DataFrame, title: str) -> None:
    means = rows[rows["seed"].isna()]
    places = np.arange(len(means), dtype=float)[::-1]
    colours = [BLACK if kind == "main" else VERMILION for kind in means["kind"]]
    for place, name, colour in zip(places, means["name"], colours, strict=True):
        row, seeds = means[means["name"] == name], rows[(rows["name"] == name) & rows["seed"].notna()]
        bars = np.nan_to_num(
            [row["effect_nats"] - row["effect_nats_low"], row["effect_nats_high"] - row["effect_nats"]]
        )
        axes.errorbar(row["effect_nats"], [place], xerr=bars, color=colour, marker="o", capsize=2)
        axes.plot(seeds["effect_nats"], np.full(len(seeds), place - 0.27), "o", color=colour, markersize=2.5, alpha=0.7)
    axes.axvline(0, color=BLACK, linewidth=1)
    axes.set_yticks(places, list(means["name"]))
    axes.set_ylim(-0.6, len(means) - 0.5)
    axes.grid(visible=False, axis="y")
    for tick, colour in zip(axes.get_yticklabels(), colours, strict=True):
        tick.set_color(colour)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.set_xlabel("nats per token; below zero is better")
    axes.set_title(title)


combined_effects = Plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Parameters as tokens, averages over depth and a pruned cache together. Linear or Pattention x plain or DWA x "
        "Full, H2O or Decay (alpha 0.2, no recent part) at 40 % of the tokens, at equal tokens and about equal "
        "parameters. Above: held-out loss with the whole cache, where parallel lines "
        "mean that Pattention and DWA add up. Below: what each policy costs each model. Right: the factorial "
        "contrasts. Every panel has a scale of its own. "
        "To see: an interaction whose bar crosses zero gives no sign that one idea changes what another brings, at "
        "this precision. Eleven intervals are not corrected for their number. No paper combines the three; nothing is "
        "published."
    ),
    data=data,
    draw=draw,
)
