"""Loss and accuracy against the forgetting factor alpha of Decay (Decay article, Fig 4b and 4c)."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, isna

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.pruning import (
    PUBLISHED_ALPHA,
    configurations,
    interval_notes,
    main_configurations,
    model_notes,
    one_model,
)
from formerlab.report.questions import MEAN, accuracies, answers, chance, title
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import BLACK, GREY, canvas, look, widen
from formerlab.results.read import Results

STUDY = "decay"


FULL_AND_H2O = {"full": "Full", "h2o": "H2O"}


def draw_alphas(axes: Axes, rows: DataFrame, value: str, levels: Mapping[str, str] = FULL_AND_H2O) -> None:
    """Draw Decay's column `value` by alpha, with bars from `<value>_low` to `_high`, and `levels` as dashed lines.

    `levels` are policies with their names. Call it last, when all else that the panel shows is drawn.
    """
    decay = rows[rows["policy"] == "decay"].sort_values("alpha")
    left, right, labels = 0.0, 1.0, []
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    if len(decay):
        left, right = decay["alpha"].iloc[0], decay["alpha"].iloc[-1]
        ends = decay[f"{value}_low"], decay[f"{value}_high"]
        points_with_bars(axes, decay["alpha"], decay[value], ends, look("decay"))
        labels.append(Label(right, decay[value].iloc[-1], "Decay", look("decay").colour))
    for policy, name in levels.items():
        level: Series[float] = rows.loc[rows["policy"] == policy, value]
        if len(level) and not isna(level.iloc[0]):
            # as long as the curve, so that it ends before its label
            axes.hlines(level.iloc[0], left, right, color=look(policy).colour, linestyle="--", linewidth=1)
            labels.append(Label(right, level.iloc[0], name, look(policy).colour))
    axes.set_xlabel("forgetting factor alpha")
    widen(axes, 0.03)
    label_directly(axes, labels)


def missing_levels(data: DataFrame) -> list[str]:
    """Return a note naming the levels without rows."""
    return missing_note(
        [FULL_AND_H2O[name] for name in set(data["policy"]) & set(FULL_AND_H2O)], [*FULL_AND_H2O.values()]
    )


def alpha_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return Decay at every alpha, without a recent window, and H2O and Full at the same budgets."""
    table = configurations(results, STUDY, runs)
    decay = table[table["policy"] == "decay"]
    if decay.empty:
        return decay
    least = decay.groupby(["run", "budget"])["recent"].transform("min")
    decay = decay[(decay["recent"] == least) | decay["recent"].isna()]
    several = decay.groupby(["run", "budget"])["alpha"].transform("nunique") > 1
    decay = decay[several]
    others = main_configurations(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    return pd.concat([others, decay], ignore_index=True) if len(decay) else decay


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    decay = data[data["policy"] == "decay"]
    panels = list(decay[["run", "budget"]].drop_duplicates().itertuples(index=False, name=None))
    dotted = f"Dotted: alpha {PUBLISHED_ALPHA:g}, the published choice."
    notes = [*interval_notes(data), dotted, *missing_levels(data)]
    figure, axes = canvas([2.6] * len(panels), notes, height=2.7, right=1.05, columns=3)
    several = decay["run"].nunique() > 1
    for panel, (run, budget) in zip(axes, panels, strict=True):
        mine = data[data["run"] == run]
        panel.set_ylabel("perplexity")
        rows = mine[mine["budget"].eq(budget) | mine["policy"].eq("full")]
        far = far_above(rows)
        draw_alphas(panel, rows[~far], "perplexity")
        _write_at_edge(panel, rows[far])
        size = f"budget {100 * budget:g} % of the tokens" if budget <= 1 else f"budget {budget:g} entries"
        panel.set_title(f"{run}: {size}" if several else size[0].upper() + size[1:])
    return figure


FAR = 10
"""An alpha is far off where its perplexity above the whole cache's is more than this times that of the next one."""


def far_above(rows: DataFrame) -> "Series[bool]":
    """Say of every row whether it is the one alpha that is far above all others."""
    full = rows.loc[rows["policy"] == "full", "perplexity"].mean()
    above = (rows["perplexity"] - full).where(rows["policy"] == "decay")
    second = above.nlargest(2).min()
    return above.gt(FAR * second) & bool(second > 0)


def _write_at_edge(axes: Axes, far: DataFrame) -> None:
    """Write a perplexity that is far above all others at the upper edge."""
    for alpha, perplexity in far[["alpha", "perplexity"]].itertuples(index=False, name=None):
        words = f"alpha {alpha:g}: {perplexity:,.0f} \N{BLACK UP-POINTING TRIANGLE}"
        axes.text(0.99, 1.0, words, color=look("decay").colour, ha="right", va="top", transform=axes.transAxes, size=8)


decay_alpha = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Held-out perplexity against the forgetting factor alpha of Decay, for each budget, with the whole cache and "
        "H2O at the same budget as lines; after Fig. 4b and 4c of the Decay article, which show accuracies (its "
        "points exist only as an image). alpha 0 keeps what the last query attended to, alpha 1 is the plain sum. To "
        "see: where the curve is lowest, whether it lies below H2O, and how flat it is: within the bars, alphas are "
        "not separable. One that is far worse than the others is written at the upper edge."
    ),
    data=alpha_data,
    draw=draw_alpha,
)


def alpha_accuracy_data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return Decay at every alpha, H2O and Full, by task, at the budget with most alphas."""
    rows = one_model(answers(results, STUDY, runs))
    sweep = rows[(rows["policy"] == "decay") & (rows["recent"] == 0)]
    counts = sweep.groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    budget = float(str(counts.idxmax()))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0) | rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    table = accuracies(rows[(plain & rows["budget"].eq(budget)) | rows["policy"].eq("full")])
    return table.assign(chance=table["task"].map(chance(rows)))


def draw_alpha_accuracy(data: DataFrame) -> Figure:
    """Draw a panel per task of which some question was answered, all with the same axis."""
    some = data.groupby("task", sort=False)["accuracy"].max() > 0
    tasks, none = list(some.index[some]), list(some.index[~some])
    budget, seeds = data.loc[data["budget"] != 1, "budget"].iloc[0], int(data["seeds"].max())
    notes = [
        f"Budget {100 * budget:g} % of the tokens; {n_seeds([seeds])}. Line at 0: Full, whose accuracy is in the "
        "title; dashed: H2O; dotted: the published alpha. Bars: 95 % interval of the difference to Full.",
        *([f"Not drawn, as not one answer is right: {', '.join(map(title, none))}."] if none else []),
        *missing_levels(data),
        *model_notes(data),
    ]
    figure, axes = canvas([2.3] * len(tasks), notes, height=2.0, right=0.6, columns=4)
    for panel, task in zip(axes, tasks, strict=True):
        rows = data[data["task"] == task]
        decay = rows[rows["policy"] == "decay"].sort_values("alpha")
        y, low, high = (100 * decay[f"difference{end}"] for end in ("", "_low", "_high"))
        panel.axhline(0, color=BLACK, linewidth=1)
        panel.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
        for level in 100 * rows.loc[rows["policy"] == "h2o", "difference"]:
            panel.axhline(level, color=look("h2o").colour, linestyle="--", linewidth=1.2)
        points_with_bars(panel, decay["alpha"], y, (low, high), look("decay"))
        full = rows.loc[rows["policy"] == "full", "accuracy"]
        share = f", Full {100 * full.iloc[0]:.0f} %" if len(full) else ""
        name = title(task).removesuffix(" (local)").replace(MEAN, "mean of five")
        panel.set_title(f"{name} (n = {rows['questions'].iloc[0]:.0f}{share})", fontsize=8.5)
        panel.set_xlabel("forgetting factor alpha")
    ends = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    for panel in axes[::4]:
        panel.set_ylabel("accuracy minus Full's (points)")
    return figure


decay_alpha_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Accuracy against the forgetting factor alpha, minus that with the whole cache; after Fig. 4b and 4c of the "
        "Decay article, whose points exist only as an image. Decay has no recent part; H2O (half recent) at the same "
        "budget is a line; one panel per data set. Bars: 95 % interval of the difference, paired by question. To see: "
        "whether small alphas do better than large ones, and whether the best alpha differs between data sets by more "
        "than the bars; the best point of a curve is no fair estimate, decay_tasks_table chooses on one half of the "
        "questions and judges on the other."
    ),
    data=alpha_accuracy_data,
    draw=draw_alpha_accuracy,
)
