"""Perplexity against the forgetting factor alpha (Decay article, Fig 4b and 4c; A2SF, arXiv:2407.20485)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.figures._pruning import PUBLISHED_ALPHA, arms, bootstrap_notes, main_arms
from formerlab.figures._runs import missing_note
from formerlab.figures._style import GREY, Label, canvas, label_directly, look
from formerlab.results import Results

STUDY = "decay"
READS = ("prune.csv", "run.json")
RUNS = ("*",)
CATEGORY = "Decay"
CAPTION = (
    "Held-out perplexity against the forgetting factor alpha of Decay, for each budget, with the whole cache and "
    "H2O at the same budget as lines; after Fig. 4b and 4c of the Decay article, which show accuracies (its points "
    "exist only as an image). alpha 0 keeps what the last query attended to, alpha 1 is the plain sum. To see: "
    "where the curve is lowest, whether it lies below H2O, and how flat it is: within the bars, alphas are not "
    "separable."
)


def data(results: Results) -> DataFrame:
    """Return Decay at every alpha, without a recent window, and H2O and Full at the same budgets."""
    table = arms(results, STUDY, RUNS)
    decay = table[table["policy"] == "decay"]
    if decay.empty:
        return decay
    least = decay.groupby(["run", "budget"])["recent"].transform("min")
    decay = decay[(decay["recent"] == least) | decay["recent"].isna()]
    several = decay.groupby(["run", "budget"])["alpha"].transform("nunique") > 1
    decay = decay[several]
    others = main_arms(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    return pd.concat([others, decay], ignore_index=True) if len(decay) else decay


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    decay = data[data["policy"] == "decay"]
    panels = list(decay[["run", "budget"]].drop_duplicates().itertuples(index=False, name=None))
    names = ["Full" if name == "full" else "H2O" for name in data["policy"] if name != "decay"]
    dotted = f"Dotted: alpha {PUBLISHED_ALPHA:g}, the published choice."
    notes = [*bootstrap_notes(data), dotted, *missing_note(names, ["Full", "H2O"])]
    figure, axes = canvas([2.6] * len(panels), notes, height=2.7, right=1.05, columns=3)
    several = decay["run"].nunique() > 1
    for panel, (run, budget) in zip(axes, panels, strict=True):
        mine = data[data["run"] == run]
        _draw_budget(panel, mine[mine["budget"].eq(budget) | mine["policy"].eq("full")])
        size = f"budget {100 * budget:g} % of the tokens" if budget <= 1 else f"budget {budget:g} entries"
        panel.set_title(f"{run}: {size}" if several else size[0].upper() + size[1:])
    return figure


def _draw_budget(axes: Axes, rows: DataFrame) -> None:
    points = rows[rows["policy"] == "decay"].sort_values("alpha")
    colour, marker = look("decay")
    y = points["perplexity"]
    bars = np.nan_to_num([y - points["perplexity_low"], points["perplexity_high"] - y])
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.errorbar(points["alpha"], y, bars, color=colour, marker=marker, capsize=2, elinewidth=1)
    labels = [Label(points["alpha"].iloc[-1], y.iloc[-1], "Decay", colour)]
    for policy, name in (("full", "Full"), ("h2o", "H2O")):
        level = rows[rows["policy"] == policy]
        if len(level):
            tint = look(policy).colour
            axes.axhline(level["perplexity"].iloc[0], color=tint, linestyle="--", linewidth=1)
            labels.append(Label(points["alpha"].iloc[-1], level["perplexity"].iloc[0], name, tint))
    axes.set_xlabel("forgetting factor alpha")
    axes.set_ylabel("perplexity")
    label_directly(axes, labels)
