"""Loss of what is used today to prune a cache, beside Decay: a row per policy, a panel per budget."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.figures.decay.budget import limits, look_of_rows, with_half_recent
from formerlab.report.pruning import configurations, interval_notes, model_notes, size_of, with_seeds
from formerlab.report.style import BLACK, canvas
from formerlab.results.read import Results

STUDY = "decay"
ARTICLE_ALONE = ("local", "spatten")
"""Policies that decay_budget shows, and decay_baselines does not."""
_COLUMNS = 4
"""Panels in a row."""


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy at every budget, and Decay with half of it recent.

    `part` is mean, or seed.
    """
    table = configurations(results, STUDY, runs)
    return with_seeds(results, STUDY, with_half_recent(table[~table["policy"].isin(ARTICLE_ALONE)]))


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run and budget; its rows are policies, the one that loses least on top."""
    pruned = data[data["policy"] != "full"]
    seeds, pruned = pruned[pruned["part"] == "seed"], pruned[pruned["part"] == "mean"]
    worst_first = pruned.groupby("configuration")["increase_nats"].mean().sort_values(ascending=False)
    names = [str(name) for name in worst_first.index]
    cells = pruned[["run", "budget"]].drop_duplicates().sort_values(["run", "budget"])
    panels = list(cells.itertuples(index=False, name=None))
    height = 0.27 * len(names) + 0.3
    notes = [*interval_notes(data), *model_notes(data)]
    figure, axes = canvas([2.5] * len(panels), notes, height=height, right=0.45, columns=_COLUMNS, left=2.9, below=0.7)
    several = len({run for run, _ in panels}) > 1
    for place, (panel, (run, budget)) in enumerate(zip(axes, panels, strict=True)):
        of_run = pruned[pruned["run"] == run]
        own = seeds[(seeds["run"] == run) & (seeds["budget"] == budget)]
        _draw(panel, of_run[of_run["budget"] == budget], own, names, limits(of_run))
        panel.set_title(f"{run}: {size_of(budget)}" if several else f"{size_of(budget)} of the tokens kept")
        panel.set_yticks(range(len(names)), names if place % _COLUMNS == 0 else [])
    for panel in axes[-_COLUMNS:]:
        panel.set_xlabel("loss above that of the\nwhole cache (nats per token)")
    return figure


def _draw(axes: Axes, rows: DataFrame, seeds: DataFrame, names: Sequence[str], ends: tuple[float, float]) -> None:
    for name, found in rows.groupby("configuration", sort=False):
        place, kind, row = names.index(str(name)), look_of_rows(found), found.iloc[0]
        value = row["increase_nats"]
        if value > ends[1]:
            words = f"{value:.2g} \N{BLACK RIGHT-POINTING TRIANGLE}"
            axes.text(ends[1], place, words, ha="right", va="center", fontsize=8, color=kind.colour)
            continue
        bars = np.nan_to_num([[value - row["increase_nats_low"]], [row["increase_nats_high"] - value]])
        axes.errorbar([value], [place], xerr=bars, color=kind.colour, marker=kind.marker, capsize=2, elinewidth=1)
        own = seeds.loc[seeds["configuration"] == name, "increase_nats"]
        axes.plot(own, np.full(len(own), place - 0.3), "o", color=kind.colour, markersize=2, alpha=0.7)
    axes.axvline(0, color=BLACK, linestyle="--", linewidth=1)
    axes.set_xlim(*ends)
    axes.set_ylim(-0.6, len(names) - 0.4)


decay_baselines = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Held-out loss above that with the whole cache (dashed), for what is used today and for the other algorithms "
        "called H2O, all evicting step by step; a panel per budget. Random is the floor; Ideal, which takes the best "
        "keys of each row anew and so is no cache, the bound. Decay is drawn as published and, like H2O, with half of "
        "the budget for recent tokens. To see: which rules that need no accumulated score come near Decay. The "
        "official mask with global statistics chooses with later queries and is marked as such: its loss is that of "
        "no cache. StreamingLLM is run with the positions of the text and with those within the cache. Bars: 95 % "
        "interval of the paired difference; a number with an arrow is a loss to the right of the panel. Realised "
        "budgets, which differ a little from those in the titles, are among the numbers."
    ),
    data=data,
    draw=draw,
)
