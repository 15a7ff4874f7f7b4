"""Loss and accuracy against the forgetting factor alpha of Decay (Decay article, Fig 4b and 4c)."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from formerlab.report.drawings import Plot
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
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import GREY
from formerlab.results.read import Results

STUDY = "decay"
NAMES = {"decay": "Decay", "full": "Full", "h2o": "H2O"}


def mark_alpha(axes: Axes, rows: DataFrame) -> None:
    """Mark the published choice on the axis of alphas."""
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    axes.set_xlim(-0.04, 1.04)
    axes.set_xticks(np.linspace(0, 1, 6))


def level_with_h2o(rows: DataFrame, name: str) -> "Series[bool]":
    """Say of every row whether the interval of its difference to H2O, in columns named so, includes 0."""
    return (rows[f"{name}_low"] <= 0) & (rows[f"{name}_high"] >= 0)


def alpha_notes(data: DataFrame) -> list[str]:
    """Return notes on the published alpha, on H2O's band and hollow points, and on what lacks."""
    notes = [f"Dotted: alpha {PUBLISHED_ALPHA:g}, the published choice. Decay has no recent part, H2O half."]
    if "h2o" in set(data["policy"]):
        notes.append(
            "Band: the same interval of H2O. Hollow: Decay is not told apart from H2O, as the 95 % interval of the "
            "paired difference of the two, each alpha taken by itself, includes 0; filled: it does not."
        )
    return [*notes, *missing_note([NAMES.get(name, "") for name in data["policy"]], ["Full", "H2O"])]


def alpha_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return Decay at every alpha, without a recent window, and H2O and Full at the same budgets."""
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


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    cells = data.loc[data["policy"] == "decay", ["run", "budget"]].drop_duplicates()
    sizes = [f"budget {size_of(budget)}{' of the tokens' * (budget <= 1)}" for budget in cells["budget"]]
    several = cells["run"].nunique() > 1
    cells = cells.assign(cell=cells["run"] + ": " + sizes if several else sizes)
    whole = data[data["policy"] == "full"].merge(cells[["run", "cell"]], on="run")
    rows = pd.concat([data.merge(cells, on=["run", "budget"]), whole])
    rows = rows.assign(series=rows["policy"].map(NAMES), level=level_with_h2o(rows, MINUS_H2O[0]))
    panel = Panel("alpha", "perplexity", by="series", each="cell", xlabel="forgetting factor alpha", empty="level",
                  ylabel="perplexity", style="policy", far=2.0, finish=mark_alpha)  # fmt: skip
    return sheet(panel, notes=[*interval_notes(data), *alpha_notes(data)])(rows.drop(columns="seeds"))


decay_alpha = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Held-out perplexity against the forgetting factor alpha of Decay, for each budget, with the whole cache and "
        "H2O at the same budget as lines, H2O in the band of its interval; after Fig. 4b and 4c of the Decay article, "
        "which show accuracies. alpha 0 keeps what the last query attended to, alpha 1 is the plain sum. To see: "
        "where the curve is lowest, and where its points are filled, so that Decay and H2O part on the same windows; "
        "bars are of the difference to the whole cache, and whether they meet says nothing of that. Far worse alphas "
        "leave the panel, with their values at its edge."
    ),
    data=alpha_data,
    draw=draw_alpha,
)


def alpha_accuracy_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return Decay at every alpha, H2O and Full, by task, at the budget with most alphas.

    `minus_h2o` is accuracy minus H2O's, paired by question.
    """
    rows = one_model(answers(results, STUDY, runs))
    sweep = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    counts = sweep.groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    budget = float(str(counts.idxmax()))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0) | rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    chosen = rows[(plain & rows["budget"].eq(budget)) | rows["policy"].eq("full")]
    table, beside_h2o = accuracies(chosen), accuracies(chosen, against="h2o")
    differences = {f"difference{end}": f"minus_h2o{end}" for end in ("", "_low", "_high")}
    beside_h2o = beside_h2o[[*CONFIGURATION, "task", *differences]].rename(columns=differences)
    table = table.merge(beside_h2o, on=[*CONFIGURATION, "task"])
    return table.assign(chance=table["task"].map(chance(rows)))


def draw_alpha_accuracy(data: DataFrame) -> Figure:
    """Draw a panel per task of which some question was answered, all with the same axis."""
    best = data.groupby("task")["accuracy"].transform("max")
    none = data.loc[best <= 0, "task"].unique()
    full = data[data["policy"] == "full"].set_index("task")["accuracy"]
    budget = data.loc[data["budget"] != 1, "budget"].iloc[0]
    points = {name: 100 * data[name] for name in ("difference", "difference_low", "difference_high")}
    titles = {
        str(task): f"{title(str(task)).removesuffix(' (local)').replace(MEAN, 'mean of five')} "
        f"(n = {count:.0f}" + (f", Full {100 * full[str(task)]:.0f} %)" if task in full else ")")
        for task, count in data.groupby("task", sort=False)["questions"].first().items()
    }  # fmt: skip
    rows = data.assign(**points, level=level_with_h2o(data, "minus_h2o"), title=data["task"].map(titles))
    rows = rows.assign(series=rows["policy"].map(NAMES), data_set="")  # questions, which no text of the run holds
    rows = rows[best.gt(0) & rows["policy"].ne("full")]
    ends = rows["difference_low"].min(), rows["difference_high"].max()
    notes = [
        f"Budget {100 * budget:g} % of the tokens; {n_seeds([data['seeds'].max()])}. Full's accuracy is in the titles. "
        "Bars: 95 % interval of the difference to Full, paired by question.",
        *alpha_notes(data),
        f"Not drawn, as not one answer is right: {', '.join(map(title, none))}." if len(none) else "",
    ]
    panel = Panel("alpha", "difference", by="series", each="title", zero=0.0, name="legend", empty="level",
                  xlabel="alpha", ylabel="minus Full's (points)", style="policy",
                  finish=partial(_one_axis, ends=ends))  # fmt: skip
    return sheet(panel, notes=notes, columns=3, height=1.4)(rows.drop(columns="seeds"))


def _one_axis(axes: Axes, rows: DataFrame, *, ends: tuple[float, float]) -> None:
    mark_alpha(axes, rows)
    axes.set_ylim(ends[0] - 0.5, ends[1] + 0.5)


decay_alpha_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Accuracy against the forgetting factor alpha, minus that with the whole cache; after Fig. 4b and 4c of the "
        "Decay article, whose points exist only as an image. Decay has no recent part; H2O (half recent) at the same "
        "budget is a line in the band of its interval; one panel per data set. Bars: 95 % interval of the difference, "
        "paired by question. To see: where points are filled, so that Decay and H2O part on the same questions; and "
        "whether the best alpha differs between data sets by more than the bars. The best point of a curve is no fair "
        "estimate; decay_tasks_table chooses on one half of the questions and judges on the other."
    ),
    data=alpha_accuracy_data,
    draw=draw_alpha_accuracy,
)
