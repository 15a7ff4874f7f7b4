"""Perplexity against cache budget for each eviction policy (Decay article; A2SF, arXiv:2407.20485, Fig 5)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.figures._pruning import NAMES, arms, bootstrap_notes, main_arms
from formerlab.figures._runs import missing_note
from formerlab.figures._style import Label, canvas, label_directly, label_level, look, loss_axis, widen
from formerlab.results import Results

STUDY = "decay"
READS = ("prune.csv", "run.json")
RUNS = ("*",)
CATEGORY = "Decay"
CAPTION = (
    "Held-out loss of a decoder against the share of tokens that its cache may keep, for each eviction policy. "
    "Policies are compared at their realised budgets; the query's own key comes on top of them. To see: which "
    "policy stays closest to the dashed line of the whole cache as the budget shrinks, and whether the bars of two "
    "policies part. Decay is drawn at the published alpha of 0.2 where that was run; decay_alpha shows the others. "
    "SpAtten's rule was written for encoders and sees later queries, which no real decoder cache can. No "
    "perplexities were published; the published accuracies stand in decay_table."
)


def data(results: Results) -> DataFrame:
    """Return one arm per policy at every budget."""
    table = arms(results, STUDY, RUNS)
    return table if table.empty else main_arms(table)


def draw(data: DataFrame) -> Figure:
    """Draw one panel per run, a line per policy."""
    notes = [*bootstrap_notes(data), *missing_note([NAMES.get(name, name) for name in data["policy"]], _WANTED)]
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
    for arm, points in pruned.sort_values("realised_budget", kind="stable").groupby("arm", sort=False):
        colour, marker = look(points["policy"].iloc[0])
        x, y = 100 * points["realised_budget"], points["loss_nats"]
        bars = np.nan_to_num(
            [
                points["increase_nats"] - points["increase_nats_low"],
                points["increase_nats_high"] - points["increase_nats"],
            ]
        )
        axes.errorbar(x, y, bars, color=colour, marker=marker, capsize=2, elinewidth=1)
        labels.append(Label(x.iloc[-1], y.iloc[-1], str(arm), colour))
    full = rows[rows["policy"] == "full"]["loss_nats"]
    if len(full):
        axes.axhline(full.iloc[0], color=look("full").colour, linestyle="--", linewidth=1)
        label_level(axes, full.iloc[0], "Full (no pruning)", look("full").colour, "left")
    axes.set_xlabel("kept tokens, realised budget (% of all tokens)")
    loss_axis(axes)
    widen(axes, 0.45)
    label_directly(axes, labels)
