"""Loss and accuracy against the forgetting factor alpha of Decay (Decay article, Fig 4b and 4c)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.drawings import plot
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import (
    CONFIGURATION,
    MINUS_H2O,
    PUBLISHED_ALPHA,
    configurations,
    interval_notes,
    main_configurations,
    minus_h2o,
    one_model,
    size_of,
)
from formerlab.report.questions import MEAN, accuracies, answers, chance, title
from formerlab.report.runs import n_seeds
from formerlab.report.style import GREY
from formerlab.results.read import Results

STUDY = "decay"
NAMES = {"decay": "Decay", "full": "Full", "h2o": "H2O"}


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published choice on the axis of alphas."""
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlim=(-0.04, 1.04), xticks=np.linspace(0, 1, 6))


def level_with_h2o(rows: DataFrame, name: str) -> "Series[bool]":
    """Say of every row whether the interval of its difference to H2O, in columns named so, includes 0."""
    return (rows[f"{name}_low"] <= 0) & (rows[f"{name}_high"] >= 0)


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    cells = data.loc[data["policy"] == "decay", ["run", "budget"]].drop_duplicates()
    sizes = [f"budget {size_of(budget)}{' of the tokens' * (budget <= 1)}" for budget in cells["budget"]]
    cells = cells.assign(cell=cells["run"] + ": " + sizes if cells["run"].nunique() > 1 else sizes)
    whole = data[data["policy"] == "full"].merge(cells[["run", "cell"]], on="run")
    rows = pd.concat([data.merge(cells, on=["run", "budget"]), whole])
    rows = rows.assign(series=rows["policy"].map(NAMES), level=level_with_h2o(rows, MINUS_H2O[0]))
    panel = Panel("alpha", "perplexity", by="series", each="cell", xlabel="forgetting factor alpha", empty="level",
                  ylabel="perplexity", style="policy", far=2.0, finish=mark_alpha)  # fmt: skip
    return sheet(panel, notes=interval_notes(data), wanted=("Full", "H2O"))(rows.drop(columns="seeds"))


@plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*"),
    draw=draw_alpha,
)
def decay_alpha(results: Results, runs: Sequence[str]) -> DataFrame:
    """Held-out perplexity against the forgetting factor alpha of Decay without a recent part, for each budget, with the
    whole cache and H2O (half recent) at the same budget as lines, H2O in the band of its interval; after Fig. 4b and 4c
    of the Decay article, which show accuracies. alpha 0 keeps what the last query attended to, alpha 1 is the plain
    sum; dotted is 0.2, the published choice. A point is filled where the 95 % interval of the difference of Decay and
    H2O on the same windows does not include 0, each alpha taken by itself. To see: where the curve is lowest, and where
    its points are filled; bars are of the difference to the whole cache, and whether they meet says nothing of that.
    Far worse alphas leave the panel, with their values at its edge.
    """
    table = configurations(results, STUDY, runs)
    decay = table[table["policy"] == "decay"]
    least = decay.groupby(["run", "budget"])["recent"].transform("min")
    decay = decay[(decay["recent"] == least) | decay["recent"].isna()]
    decay = decay[decay.groupby(["run", "budget"])["alpha"].transform("nunique") > 1]
    if decay.empty:
        return decay
    others = main_configurations(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    table, differences = pd.concat([others, decay], ignore_index=True), minus_h2o(results, STUDY, runs)
    empty = table.assign(**dict.fromkeys(MINUS_H2O, np.nan))
    return table.merge(differences, on=CONFIGURATION, how="left") if len(differences) else empty


def draw_alpha_accuracy(data: DataFrame) -> Figure:
    """Draw a panel per task of which some question was answered, all with the same axis."""
    full = data[data["policy"] == "full"].set_index("task")["accuracy"]
    names = data["task"].map(lambda task: title(task).removesuffix(" (local)").replace(MEAN, "mean of five"))
    known = [f"{name} (n = {count:.0f}, Full {100 * full.get(task, np.nan):.0f} %)"
             for name, count, task in zip(names, data["questions"], data["task"], strict=True)]  # fmt: skip
    points = {name: 100 * data[name] for name in ("difference", "difference_low", "difference_high")}
    rows = data.assign(**points, level=level_with_h2o(data, "minus_h2o"), title=known, series=data["policy"].map(NAMES),
                       data_set="")  # fmt: skip
    rows = rows[data.groupby("task")["accuracy"].transform("max").gt(0) & rows["policy"].ne("full")]
    ends = rows["difference_low"].min() - 0.5, rows["difference_high"].max() + 0.5
    panel = Panel("alpha", "difference", by="series", each="title", zero=0.0, name="legend", empty="level",
                  xlabel="alpha", ylabel="minus Full's (points)", style="policy",
                  finish=partial(_one_axis, ends=ends))  # fmt: skip
    notes = [f"Budget {100 * rows['budget'].iloc[0]:g} % of the tokens; {n_seeds([data['seeds'].max()])}."]
    return sheet(panel, notes=notes, wanted=["H2O"], columns=3, height=1.4)(rows.drop(columns="seeds"))


def _one_axis(axes: Axes, rows: DataFrame, *, ends: tuple[float, float]) -> None:
    mark_alpha(axes, rows)
    axes.set_ylim(ends)


@plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder", "released-*"),
    draw=draw_alpha_accuracy,
)
def decay_alpha_accuracy(results: Results, runs: Sequence[str]) -> DataFrame:
    """Accuracy against the forgetting factor alpha, minus that with the whole cache; after Fig. 4b and 4c of the Decay
    article, whose points exist only as an image. Decay has no recent part; H2O (half recent) at the same budget is a
    line in the band of its interval; one panel per data set of which some question was answered. Bars: 95 % interval of
    the difference, paired by question. A point is filled where that of the difference of Decay and H2O does not include
    0, each alpha taken by itself; dotted is 0.2, the published choice. To see: where points are filled, and whether the
    best alpha differs between data sets by more than the bars. The best point of a curve is no fair estimate;
    decay_tasks_table chooses on one half of the questions and judges on the other.
    """
    rows = one_model(answers(results, STUDY, runs))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0)
    counts = rows[plain].groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    half = rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    chosen = rows[(plain | half) & rows["budget"].eq(float(str(counts.idxmax()))) | rows["policy"].eq("full")]
    beside_h2o = accuracies(chosen, against="h2o").rename(columns=lambda name: name.replace("difference", "minus_h2o"))
    beside_h2o = beside_h2o[[*CONFIGURATION, "task", "minus_h2o", "minus_h2o_low", "minus_h2o_high"]]
    table = accuracies(chosen).merge(beside_h2o, on=[*CONFIGURATION, "task"])
    return table.assign(chance=table["task"].map(chance(rows)))
