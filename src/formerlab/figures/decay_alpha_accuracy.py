"""Accuracy against the forgetting factor alpha, by data set (Decay article, Fig 4b and 4c)."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.figures._pruning import PUBLISHED_ALPHA
from formerlab.figures._questions import BARS, accuracies, answers, chance, title
from formerlab.figures._runs import missing_note
from formerlab.figures._style import GREY, Label, canvas, label_directly, look, widen
from formerlab.results import Results

STUDY = "decay"
READS = ("prune_questions.csv", "run.json")
RUNS = ("decoder",)
CATEGORY = "Decay"
CAPTION = (
    "Accuracy against the forgetting factor alpha of Decay without a recent part, one panel per data set, with Full "
    "and H2O (half recent) as lines at the same budget; after Fig. 4b and 4c of the Decay article, whose points exist "
    "only as an image. Bars: 95 % bootstrap over questions, seeds first. To see: whether small alphas do better than "
    "large ones, and whether the best alpha differs between data sets by more than the bars; the best point of a "
    "curve is no fair estimate, decay_tasks_table chooses on one half of the questions and judges on the other."
)


def data(results: Results) -> DataFrame:
    """Return Decay at every alpha, H2O and Full, by task, at the budget with most alphas."""
    rows = answers(results, STUDY, RUNS)
    sweep = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    counts = sweep.groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame(columns=["source"])
    budget = float(str(counts.idxmax()))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0) | rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    table = accuracies(rows[(plain & rows["budget"].eq(budget)) | rows["policy"].eq("full")])
    return table.assign(chance=table["task"].map(chance(rows)))


def draw(data: DataFrame) -> Figure:
    """Draw a panel per task."""
    tasks = list(data["task"].unique())
    budget, seeds = data.loc[data["budget"] != 1, "budget"].iloc[0], int(data["seeds"].max())
    names = ["Full" if policy == "full" else "H2O" for policy in data["policy"] if policy != "decay"]
    notes = [
        f"Budget {100 * budget:g} % of the tokens; n = {seeds} seed(s). Dotted: the published alpha. Grey: chance. "
        f"{BARS}",
        *missing_note(names, ["Full", "H2O"]),
    ]
    figure, axes = canvas([2.4] * len(tasks), notes, height=2.2, right=0.95, columns=4)
    for panel, task in zip(axes, tasks, strict=True):
        rows = data[data["task"] == task]
        _draw(panel, rows)
        panel.set_title(f"{title(task)} (n = {int(rows['questions'].iloc[0])})", fontsize=8.5)
    return figure


def _draw(axes: Axes, rows: DataFrame) -> None:
    points = rows[rows["policy"] == "decay"].sort_values("alpha")
    colour, marker = look("decay")
    y = 100 * points["accuracy"]
    bars = np.nan_to_num([y - 100 * points["low"], 100 * points["high"] - y])
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.errorbar(points["alpha"], y, bars, color=colour, marker=marker, capsize=2, elinewidth=1)
    labels = [Label(points["alpha"].iloc[-1], y.iloc[-1], "Decay", colour)]
    for policy, name in (("full", "Full"), ("h2o", "H2O")):
        level = rows[rows["policy"] == policy]
        if len(level):
            tint = look(policy).colour
            axes.axhline(100 * level["accuracy"].iloc[0], color=tint, linestyle="--", linewidth=1)
            labels.append(Label(points["alpha"].iloc[-1], 100 * level["accuracy"].iloc[0], name, tint))
    if rows["chance"].notna().any():
        axes.axhline(100 * rows["chance"].dropna().iloc[0], color=GREY, linewidth=0.8)
    axes.set_xlabel("alpha")
    axes.set_ylabel("accuracy (%)")
    if not y.any():  # no answer is right: an axis around zero would show accuracies that cannot be
        axes.set_ylim(-0.5, 10)
    widen(axes, 0.03)
    label_directly(axes, labels)
