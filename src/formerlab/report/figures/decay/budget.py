"""Loss against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.pruning import CONFIGURATION, NAMES, configurations, interval_notes, main_configurations
from formerlab.report.runs import missing_note
from formerlab.report.style import canvas, look, widen
from formerlab.results.read import Results

STUDY = "decay"
LINEAR_BELOW_NATS = 0.01
POLICIES_BUDGET = ("local", "streaming_llm", "h2o", "spatten", "decay")
"""Those of the article, and StreamingLLM; decay_baselines draws the others."""
HALF_RECENT = "Decay, half recent"


def budget_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy of the article at every budget, and Decay with half of it recent."""
    table = configurations(results, STUDY, runs)
    table = table[table["policy"].isin(["full", *POLICIES_BUDGET])]
    if table.empty:
        return table
    main = main_configurations(table)
    alphas = main.loc[main["policy"] == "decay", "alpha"].unique()
    split = table[(table["policy"] == "decay") & (table["recent"] == 0.5) & table["alpha"].isin(alphas)]
    return pd.concat([main, split]).drop_duplicates(CONFIGURATION, ignore_index=True)


def draw_budget(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy."""
    return draw_runs(data, missing_note([NAMES.get(name, name) for name in data["policy"]], _WANTED))


def draw_runs(data: DataFrame, notes: Sequence[str]) -> Figure:
    """Draw one panel per run, a line per policy."""
    notes = [*interval_notes(data), *notes]
    runs = list(data["run"].unique())
    figure, axes = canvas([5.0] * len(runs), notes, columns=2)
    for panel, run in zip(axes, runs, strict=True):
        _draw_run(panel, data[data["run"] == run])
        panel.set_title(f"Run {run}")
    return figure


_WANTED = [NAMES[name] for name in ("full", "local", "h2o", "spatten", "decay")]


def _draw_run(axes: Axes, rows: DataFrame) -> None:
    pruned = rows[rows["policy"] != "full"]
    labels = []
    for configuration, points in pruned.sort_values("realised_budget", kind="stable").groupby(
        "configuration", sort=False
    ):
        policy, recent = points["policy"].iloc[0], points["recent"].iloc[0]
        kind = look(HALF_RECENT if policy == "decay" and recent == 0.5 else policy)
        x, y = 100 * points["realised_budget"], points["increase_nats"]
        points_with_bars(axes, x, y, (points["increase_nats_low"], points["increase_nats_high"]), kind)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(configuration), kind.colour))
    axes.axhline(0, color=look("full").colour, linestyle="--", linewidth=1)
    labels.append(Label(100 * pruned["realised_budget"].max(), 0, "Full (no pruning)", look("full").colour))
    # policies differ by orders of magnitude; near zero, where they cross it, the axis is linear
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW_NATS)
    axes.set_xlabel("kept tokens, realised budget (% of all tokens)")
    axes.set_ylabel("loss above that of the whole cache (nats per token)")
    widen(axes, 0.45)
    label_directly(axes, labels)


decay_budget = Plot(
    reads=("prune.csv", "run.json"),
    runs=("*",),
    caption=(
        "Held-out loss of a decoder above that with the whole cache, against the share of tokens that its cache may "
        "keep, for each eviction policy. Policies are compared at their realised budgets; the query's own key comes "
        "on top of them. To see: which policy stays closest to zero as the budget shrinks, and whether the bars of "
        "two policies part; the axis is linear below 0.01 nats and logarithmic above. Decay is drawn at the published "
        "alpha of 0.2 where that was run, as published and with half of the budget for recent tokens, which is how H2O "
        "divides it; decay_alpha shows the others. SpAtten's rule was written for encoders and "
        "sees later queries, which no real decoder cache can. No perplexities were published; the published "
        "accuracies stand in decay_table."
    ),
    data=budget_data,
    draw=draw_budget,
)


ARTICLE_ALONE = ("local", "spatten")
"""Policies that decay_budget shows, and decay_baselines does not."""


def baselines_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return one configuration per policy at every budget."""
    table = configurations(results, STUDY, runs)
    table = table[~table["policy"].isin(ARTICLE_ALONE)]
    return table if table.empty else main_configurations(table)


def draw_baselines(data: DataFrame) -> Figure:
    """Draw a line per policy."""
    return draw_runs(data, [])


decay_baselines = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Held-out loss above that with the whole cache, against the realised budget, for what is used today and for "
        "the other algorithms called H2O, all evicting step by step. Random is the floor; Ideal, which takes the best "
        "keys of each row anew and so is no cache, the bound. To see: which rules that need no accumulated score come "
        "near Decay. The official mask with global statistics chooses with later queries and is marked as such: its "
        "loss is that of no cache. StreamingLLM is run with the positions of the text and with those within the "
        "cache. Bars: 95 % interval of the paired difference; the axis is linear below 0.01 nats."
    ),
    data=baselines_data,
    draw=draw_baselines,
)
