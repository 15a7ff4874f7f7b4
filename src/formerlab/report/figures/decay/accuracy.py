"""Zero-shot accuracy of Full, H2O and Decay (Decay article, Fig 4a and Table 2)."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import points_with_bars
from formerlab.report.pruning import PUBLISHED_ALPHA
from formerlab.report.published import DECAY, published
from formerlab.report.questions import BARS, MEAN, SUITES, accuracies, answers, chance, title
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import GREY, canvas, look, mark_published
from formerlab.results.read import Results

STUDY = "decay"
CONFIGURATIONS = ("Full", "H2O", "Decay", "Local")


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the accuracies of four configurations by task, and the published ones."""
    rows = answers(results, STUDY, runs)
    if rows.empty:
        return DataFrame()
    budgets = [budget for budget in rows["budget"].unique() if budget != 1]
    budget = min(budgets, key=lambda each: abs(each - 0.4), default=0.4)
    policy, alpha, recent = rows["policy"], rows["alpha"], rows["recent"]
    half, plain = policy.eq("h2o") & recent.eq(0.5), policy.eq("decay") & recent.eq(0) & alpha.eq(PUBLISHED_ALPHA)
    wanted = rows["budget"].eq(budget) & (half | plain | policy.eq("local"))
    table = accuracies(rows[wanted | policy.eq("full")])
    names = {"full": "Full", "h2o": "H2O", "decay": "Decay", "local": "Local"}
    table = table.assign(series=table["policy"].map(names), chance=table["task"].map(chance(rows)))
    return pd.concat([table, _published()], ignore_index=True)


def _published() -> DataFrame:
    rows = published(DECAY, "Fig 4a", "Table 2")
    model, configuration = rows["model"].str.partition(" ")[0], rows["model"].str.split().str[1]
    table = DataFrame({"run": model, "series": configuration, "task": rows["metric"].str.removesuffix("_acc")})
    return table.assign(accuracy=rows["value"].astype(float) / 100, source="published")


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run, then one per published model."""
    ours = data[data["source"] == "ours"]
    panels = [(str(run), rows) for run, rows in ours.groupby("run", sort=False)]
    theirs = [(str(run), rows) for run, rows in data[data["source"] == "published"].groupby("run", sort=False)]
    budget = ours.loc[ours["budget"] != 1, "budget"]
    seeds = int(ours["seeds"].max())
    held = ours.loc[ours["budget"] != 1, "realised_budget"]
    realised = f"realised budgets {100 * held.min():.1f} to {100 * held.max():.1f} %" if len(held) else ""
    size = f"Budget {100 * budget.iloc[0]:g} %" if len(budget) else "No pruned configuration"
    notes = [
        f"{size}, {realised}; {n_seeds([seeds])}. Grey ticks: chance. {BARS}",
        *missing_note(list(ours["series"]), list(CONFIGURATIONS)),
    ]
    widths = [max(2.6, 0.5 * rows["task"].nunique()) for _, rows in (*panels, *theirs)]
    figure, axes = canvas(widths, notes, height=2.7, right=1.35, columns=2)
    for panel, (run, rows) in zip(axes, [*panels, *theirs], strict=True):
        _draw(panel, rows)
        if rows["source"].iloc[0] == "published":
            mark_published(panel, run)
        else:
            panel.set_title(f"Run {run}")
    return figure


def _tick(task: str) -> str:
    """Return the name of a task, short enough to stand below an axis."""
    return title(task).replace(MEAN, "mean of five")


def _draw(axes: Axes, rows: DataFrame) -> None:
    order = [*SUITES, *(f"{suite}_local" for suite in SUITES)]
    tasks = sorted(
        rows["task"].unique(), key=lambda task: (task not in order, order.index(task) if task in order else 0)
    )
    places = {task: place for place, task in enumerate(tasks)}
    series = [name for name in CONFIGURATIONS if name in set(rows["series"])]
    for index, name in enumerate(series):
        points = rows[rows["series"] == name]
        x = points["task"].map(places) + 0.16 * (index - (len(series) - 1) / 2)
        y, ends = 100 * points["accuracy"], (100 * points["low"], 100 * points["high"])
        points_with_bars(axes, x, y, ends, look(name.lower()), linestyle="", label=name)
    if rows["chance"].notna().any():
        guesses = rows.dropna(subset=["chance"]).drop_duplicates("task")
        for task, guess in zip(guesses["task"], guesses["chance"], strict=True):
            axes.hlines(100 * guess, places[task] - 0.35, places[task] + 0.35, color=GREY, linewidth=1)
    axes.set_xticks(range(len(tasks)), [_tick(task) for task in tasks], rotation=35, ha="right", fontsize=7.5)
    axes.set_ylabel("accuracy (%)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)


decay_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("*",),
    caption=(
        "Zero-shot accuracy with the whole cache, H2O (half recent), Decay (alpha 0.2, no recent part) and Local at "
        "40 % of the tokens, or the budget nearest to it; after Fig. 4a and Table 2 of the Decay article, whose "
        "values stand in panels of their own: other models, other questions. Suites named (local) are asked from "
        "local files with prompts of their own. Embedded questions count by mutual information. Bars: 95 % interval "
        "over questions and seeds. To see: how much H2O loses against Full, and how much of that Decay wins back; "
        "small models near chance (grey) lose nothing by pruning, and then tell nothing."
    ),
    data=data,
    draw=draw,
)
