"""Loss and accuracy against the forgetting factor alpha of Decay (Decay article, Fig 4b and 4c)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame, Series

from formerlab.report.drawings import Plot
from formerlab.report.marks import Label, label_directly, points_with_bars
from formerlab.report.pruning import (
    CONFIGURATION,
    MINUS_H2O,
    PUBLISHED_ALPHA,
    configurations,
    interval_notes,
    main_configurations,
    minus_h2o,
    model_notes,
    one_model,
)
from formerlab.report.questions import MEAN, accuracies, answers, chance, title
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import BLACK, GREY, canvas, look
from formerlab.results.read import Results

STUDY = "decay"
NAMES = {"full": "Full", "h2o": "H2O"}
COLUMNS = 4
"""Panels in a row of decay_alpha_accuracy."""
_ENDS = ["perplexity_low", "perplexity", "perplexity_high"]
_BAND = 0.2
"""Opacity of H2O's interval."""


def draw_curve(axes: Axes, decay: DataFrame, value: str, level: "Series[bool] | None" = None) -> None:
    """Draw Decay's column `value` by alpha, with bars from `<value>_low` to `_high`; hollow where `level` is true."""
    decay, kind = decay.sort_values("alpha"), look("decay")
    axes.axvline(PUBLISHED_ALPHA, color=GREY, linestyle=":", linewidth=1)
    points_with_bars(axes, decay["alpha"], decay[value], (decay[f"{value}_low"], decay[f"{value}_high"]), kind)
    if level is not None:
        hollow = decay[level.reindex(decay.index)]
        axes.plot(hollow["alpha"], hollow[value], kind.marker, color=kind.colour, markerfacecolor="white", zorder=3)
    axes.set_xlim(-0.04, 1.04)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.set_xlabel("forgetting factor alpha")


def level_with_h2o(rows: DataFrame, name: str) -> "Series[bool]":
    """Say of every row whether the interval of its difference to H2O, in columns named so, includes 0."""
    return (rows[f"{name}_low"] <= 0) & (rows[f"{name}_high"] >= 0)


def h2o_notes(data: DataFrame) -> list[str]:
    """Return a note on what H2O's band and hollow points mean, where there is an H2O."""
    if "h2o" not in set(data["policy"]):
        return []
    return [
        "Band: the same interval of H2O. Hollow: Decay is not told apart from H2O, as the 95 % interval of the paired "
        "difference of the two, each alpha taken by itself, includes 0; filled: it does not."
    ]


def missing_levels(data: DataFrame) -> list[str]:
    """Return a note naming the levels without rows."""
    return missing_note([NAMES[name] for name in set(data["policy"]) & set(NAMES)], [*NAMES.values()])


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
    if decay.empty:
        return decay
    others = main_configurations(table[table["policy"].isin(["full", "h2o"])])
    others = others[(others["policy"] == "full") | others["budget"].isin(decay["budget"])]
    table = pd.concat([others, decay], ignore_index=True)
    differences = minus_h2o(results, STUDY, runs)
    return (
        table.merge(differences, on=CONFIGURATION, how="left")
        if len(differences)
        else table.assign(**dict.fromkeys(MINUS_H2O, np.nan))
    )


def draw_alpha(data: DataFrame) -> Figure:
    """Draw a panel per run and budget."""
    decay = data[data["policy"] == "decay"]
    panels = list(decay[["run", "budget"]].drop_duplicates().itertuples(index=False, name=None))
    dotted = (
        f"Decay has no recent part, H2O half of the budget. Dotted: alpha {PUBLISHED_ALPHA:g}, the published choice."
    )
    axes_differ = ["Every panel has an axis of its own."] if len(panels) > 1 else []
    notes = [*interval_notes(data), *h2o_notes(data), " ".join([dotted, *axes_differ, *model_notes(data)])]
    figure, axes = canvas([2.6] * len(panels), [*notes, *missing_levels(data)], height=2.7, right=1.05, columns=3)
    several = decay["run"].nunique() > 1
    for panel, (run, budget) in zip(axes, panels, strict=True):
        mine = data[data["run"] == run]
        panel.set_ylabel("perplexity")
        _draw_perplexities(panel, mine[mine["budget"].eq(budget) | mine["policy"].eq("full")])
        size = f"budget {100 * budget:g} % of the tokens" if budget <= 1 else f"budget {budget:g} entries"
        panel.set_title(f"{run}: {size}" if several else size[0].upper() + size[1:])
    return figure


def _draw_perplexities(axes: Axes, rows: DataFrame) -> None:
    """Draw the curve beside the levels; alphas that are far off leave the panel, and are written where they do."""
    far = far_above(rows)
    near, decay = rows[~far], rows[rows["policy"] == "decay"]
    last = near[near["policy"] == "decay"].sort_values("alpha").iloc[-1]
    labels = [Label(last["alpha"], last["perplexity"], "Decay", look("decay").colour)]
    for policy, name in NAMES.items():
        for low, level, high in rows.loc[rows["policy"] == policy, _ENDS].to_numpy(dtype=float):
            axes.axhspan(low, high, color=look(policy).colour, alpha=_BAND, linewidth=0)
            axes.axhline(level, color=look(policy).colour, linestyle="--", linewidth=1)
            labels.append(Label(1.0, level, name, look(policy).colour))
    draw_curve(axes, decay, "perplexity", level_with_h2o(decay, MINUS_H2O[0]))
    low, high = np.nanmin(near[_ENDS]), np.nanmax(near[_ENDS])
    room = 0.06 * (high - low) or 0.05
    axes.set_ylim(low - room, high + room + 2 * room * far.sum())
    words = [
        f"alpha {row.alpha:g}: {row.perplexity:,.0f} \N{BLACK UP-POINTING TRIANGLE}"
        for row in rows[far].sort_values("alpha").itertuples()
    ]
    where: dict[str, Any] = {"ha": "right", "va": "top", "transform": axes.get_xaxis_transform()}
    axes.text(min(last["alpha"], 0.9) - 0.02, 0.985, "\n".join(words), color=look("decay").colour, size=8, **where)
    label_directly(axes, labels)


FAR = 2
"""An alpha is far off where its perplexity is more than this times as far from Full's as that of all nearer ones."""


def far_above(rows: DataFrame) -> "Series[bool]":
    """Say of every row whether it is an alpha that is far above most others, or above such a one."""
    full = rows.loc[rows["policy"] == "full", "perplexity"].mean()
    above = (rows["perplexity"] - full).where(rows["policy"] == "decay")
    upwards = above.dropna().sort_values()
    nearer = upwards.abs().cummax().shift()
    gaps = upwards[(upwards > FAR * nearer) & (upwards > upwards.median())]
    return above >= (gaps.min() if len(gaps) else np.inf)


decay_alpha = Plot(
    reads=("prune.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Held-out perplexity against the forgetting factor alpha of Decay, for each budget, with the whole cache and "
        "H2O at the same budget as lines, H2O in the band of its interval; after Fig. 4b and 4c of the Decay article, "
        "which show accuracies (its points exist only as an image). alpha 0 keeps what the last query attended to, "
        "alpha 1 is the plain sum. To see: where the curve is lowest, and where its points are filled, so that Decay "
        "and H2O part on the same windows; bars are of the difference to the whole cache, and whether they meet says "
        "nothing of that. Alphas that are far worse than the others leave the panel, with their values at its edge."
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
    some = data.groupby("task", sort=False)["accuracy"].max() > 0
    tasks, none = list(some.index[some]), list(some.index[~some])
    budget, seeds = data.loc[data["budget"] != 1, "budget"].iloc[0], int(data["seeds"].max())
    notes = [
        f"Budget {100 * budget:g} % of the tokens; {n_seeds([seeds])}. Full's accuracy is in the titles. Bars: 95 % "
        "interval of the difference to Full, paired by question.",
        *h2o_notes(data),
        *([f"Not drawn, as not one answer is right: {', '.join(map(title, none))}."] if none else []),
        *missing_levels(data),
        *model_notes(data),
    ]
    last = min(len(tasks), COLUMNS) - 1
    rights = [2.0 if place % COLUMNS == last else 0.5 for place in range(len(tasks))]
    figure, axes = canvas([2.2] * len(tasks), notes, height=2.0, right=rights, columns=COLUMNS)
    for panel, task in zip(axes, tasks, strict=True):
        rows = data[data["task"] == task]
        points = ["difference", "difference_low", "difference_high"]
        rows = rows.assign(**100 * rows[points])
        panel.axhline(0, color=BLACK, linewidth=1)
        for h2o in rows[rows["policy"] == "h2o"].itertuples(index=False):
            colour = look("h2o").colour
            panel.axhspan(h2o.difference_low, h2o.difference_high, color=colour, alpha=_BAND, linewidth=0)
            panel.axhline(h2o.difference, color=colour, linestyle="--", linewidth=1.2)
        decay = rows[rows["policy"] == "decay"]
        draw_curve(panel, decay, "difference", level_with_h2o(decay, "minus_h2o"))
        full = rows.loc[rows["policy"] == "full", "accuracy"]
        share = f", Full {100 * full.iloc[0]:.0f} %" if len(full) else ""
        name = title(task).removesuffix(" (local)").replace(MEAN, "mean of five")
        panel.set_title(f"{name} (n = {rows['questions'].iloc[0]:.0f}{share})", fontsize=8.5)
    ends = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        panel.yaxis.set_major_locator(MaxNLocator(5))  # else a row with other labels has other ticks
    for panel in axes[::COLUMNS]:
        panel.set_ylabel("accuracy minus Full's (points)")
    axes[last].legend(handles=_keys(data), loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=7.5)
    return figure


def _keys(data: DataFrame) -> list[Line2D | Patch]:
    """Return the handles of the legend of decay_alpha_accuracy."""
    decay, h2o = look("decay"), look("h2o")
    shown = set(data["policy"])
    keys: list[Line2D | Patch] = [
        Line2D([], [], color=decay.colour, marker=decay.marker, label="Decay, no recent part"),
    ]
    if "h2o" in shown:
        hollow: dict[str, Any] = {"marker": decay.marker, "markerfacecolor": "white", "color": decay.colour}
        keys += [
            Line2D([], [], **hollow, label="not told apart from H2O"),
            Line2D([], [], color=h2o.colour, linestyle="--", linewidth=1.2, label="H2O, half recent"),
            Patch(color=h2o.colour, alpha=_BAND, linewidth=0, label="its interval"),
        ]
    if "full" in shown:
        keys.append(Line2D([], [], color=BLACK, linewidth=1, label="Full"))
    return [
        *keys,
        Line2D([], [], color=GREY, linestyle=":", linewidth=1, label=f"alpha {PUBLISHED_ALPHA:g}, published"),
    ]


decay_alpha_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder", "released-*"),
    caption=(
        "Accuracy against the forgetting factor alpha, minus that with the whole cache; after Fig. 4b and 4c of the "
        "Decay article, whose points exist only as an image. Decay has no recent part; H2O (half recent) at the same "
        "budget is a line in the band of its interval; one panel per data set. Bars: 95 % interval of the difference, "
        "paired by question. To see: where points are filled, so that Decay and H2O part on the same questions; "
        "whether small alphas do better than large ones, and whether the best alpha differs between data sets by more "
        "than the bars; the best point of a curve is no fair estimate, decay_tasks_table chooses on one half of the "
        "questions and judges on the other."
    ),
    data=alpha_accuracy_data,
    draw=draw_alpha_accuracy,
)
