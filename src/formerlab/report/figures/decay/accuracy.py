"""Zero-shot accuracy under pruning minus that with the whole cache (Decay article, Fig 4a and Table 2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.marks import points_with_bars
from formerlab.report.pruning import PUBLISHED_ALPHA
from formerlab.report.published import DECAY, published
from formerlab.report.questions import MEAN, SUITES, accuracies, answers, chance, title
from formerlab.report.runs import missing_note, n_seeds
from formerlab.report.style import BLACK, GREY, canvas, look, mark_published
from formerlab.results.read import Results

STUDY = "decay"
_COLUMNS = 3
_RIGHT = 0.85
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
    table = table.assign(accuracy=rows["value"].astype(float) / 100, source="published")
    full = table[table["series"] == "Full"].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(full, on=["run", "task"])
    return table.assign(difference=table["accuracy"] - table["full"]).drop(columns="full")


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run, then one per published model."""
    ours = data[data["source"] == "ours"]
    panels = [(str(run), rows) for run, rows in ours.groupby("run", sort=False)]
    theirs = [(str(run), rows) for run, rows in data[data["source"] == "published"].groupby("run", sort=False)]
    budget = ours.loc[ours["budget"] != 1, "budget"]
    seeds = int(ours["seeds"].max())
    held = ours.loc[ours["budget"] != 1, "realised_budget"]
    ends = dict.fromkeys(f"{100 * end:.1f}" for end in (held.min(), held.max())) if len(held) else ()
    realised = f", realised {' to '.join(ends)} %" if ends else ""
    size = f"Budget {100 * budget.iloc[0]:g} %" if len(budget) else "No pruned configuration"
    notes = [
        f"{size}{realised}; {n_seeds([seeds])}. Beside each suite: accuracy with the whole cache; grey: not better "
        "than guessing. Bars: 95 % interval of the difference, paired by question, over seeds where there "
        "are several.",
        *missing_note(list(ours["series"]), list(CONFIGURATIONS)),
    ]
    widths = [max(2.6, 0.42 * rows["task"].nunique()) for _, rows in (*panels, *theirs)]
    figure, axes = canvas(_filled(widths), notes, height=2.7, right=_RIGHT, columns=_COLUMNS, below=1.15)
    for panel, (run, rows) in zip(axes, [*panels, *theirs], strict=True):
        _draw(panel, rows)
        if rows["source"].iloc[0] == "published":
            mark_published(panel, run)
        else:
            panel.set_title(f"Run {run}")
    if shown := [name for name in CONFIGURATIONS[1:] if name in set(ours["series"])]:
        beside = axes[min(len(axes), _COLUMNS) - 1]
        beside.legend(*_keys(shown), loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5, handletextpad=0.1)
    return figure


def _filled(widths: Sequence[float]) -> list[float]:
    """Return the widths of the panels; those of a last row that is not full fill it."""
    full = len(widths) - len(widths) % _COLUMNS
    if not full or full == len(widths):
        return list(widths)
    room = sum(widths[:_COLUMNS]) + _COLUMNS * _RIGHT - (len(widths) - full) * _RIGHT
    return [*widths[:full], *(width * room / sum(widths[full:]) for width in widths[full:])]


def _keys(series: Sequence[str]) -> tuple[list[Line2D], list[str]]:
    """Return the handles and the words of the legend."""
    looks = [look(name.lower()) for name in series]
    return [Line2D([], [], color=kind.colour, marker=kind.marker, linestyle="") for kind in looks], list(series)


def _tick(task: str) -> str:
    """Return the name of a task, short enough to stand below an axis."""
    return title(task).replace(MEAN, "mean of five").removesuffix(" (local)")


def _draw(axes: Axes, rows: DataFrame) -> None:
    order = [*SUITES, *(f"{suite}_local" for suite in SUITES)]
    tasks = sorted(
        rows["task"].unique(), key=lambda task: (task not in order, order.index(task) if task in order else 0)
    )
    places = {task: place for place, task in enumerate(tasks)}
    series = [name for name in CONFIGURATIONS[1:] if name in set(rows["series"])]
    for index, name in enumerate(series):
        points = rows[rows["series"] == name]
        x = points["task"].map(places) + 0.2 * (index - (len(series) - 1) / 2)
        ends = 100 * points["difference_low"], 100 * points["difference_high"]
        points_with_bars(axes, x, 100 * points["difference"], ends, look(name.lower()), linestyle="")
    axes.axhline(0, color=BLACK, linewidth=1)
    full = rows[rows["series"] == "Full"].set_index("task")
    words = [f"{_tick(task)}: {100 * full['accuracy'].get(task, np.nan):.0f} %" for task in tasks]
    axes.set_xticks(range(len(tasks)), words, rotation=35, ha="right", fontsize=7.5)
    for tick, task in zip(axes.get_xticklabels(), tasks, strict=True):
        if task in full.index and full.loc[task, "low"] <= np.nan_to_num(full.loc[task, "chance"]):
            tick.set_color(GREY)
    axes.set_ylabel("accuracy minus Full's (points)")


decay_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Zero-shot accuracy of a pruned cache minus that of the whole one, after Fig. 4a and Table 2 of the Decay "
        "article, whose values stand in panels of their own: other models, other questions. H2O (half recent), Decay "
        "(alpha 0.2, no recent part) and Local keep 40 % of the tokens, or the budget nearest to it. The suites are "
        "asked from local files with prompts of their own; embedded questions count by mutual information. To see: "
        "how much H2O loses against Full, and how much of that Decay wins back; small models near chance (grey "
        "names) lose nothing by pruning, and then tell nothing."
    ),
    data=data,
    draw=draw,
)
