"""Zero-shot accuracy under pruning minus that with the whole cache (Decay article, Fig 4a and Table 2)."""

import re
from collections.abc import Sequence
from typing import Any

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
_RIGHT, _LEGEND = 0.75, 1.9
"""Room beside a panel, and beside the last of a row, where the legend stands."""
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
    settings = [_setting(model) for model in rows["model"]]
    table = table.assign(**dict(zip(("budget", "recent", "alpha"), zip(*settings, strict=True), strict=True)))
    table = table.assign(accuracy=rows["value"].astype(float) / 100, source="published")
    full = table[table["series"] == "Full"].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(full, on=["run", "task"])
    return table.assign(difference=table["accuracy"] - table["full"]).drop(columns="full")


def _setting(model: str) -> tuple[float, float, float]:
    """Return budget, recent share and alpha of `... Decay 0+40 alpha=0.2`: percents kept as recent, and by score."""
    found = re.search(r"(\d+)\+(\d+)(?: alpha=([\d.]+))?", model)
    if found is None:
        return 1.0, np.nan, np.nan
    recent, chosen = int(found[1]), int(found[2])
    return (recent + chosen) / 100, recent / (recent + chosen), float(found[3] or np.nan)


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run, then one per published model."""
    ours = data[data["source"] == "ours"]
    panels = [(str(run), rows) for run, rows in ours.groupby("run", sort=False)]
    theirs = [(str(run), rows) for run, rows in data[data["source"] == "published"].groupby("run", sort=False)]
    seeds = int(ours["seeds"].max())
    notes = [
        f"{n_seeds([seeds])}. Beside each suite: accuracy with the whole cache; grey: not better than guessing. Bars: "
        "95 % interval of the difference, paired by question, over seeds where there are several; none were published. "
        "One axis for all panels; what Local loses below it stands as a number at the lower edge.",
        *_unknown_alpha(data),
        *missing_note(list(ours["series"]), list(CONFIGURATIONS)),
    ]
    widths = [max(2.6, 0.42 * rows["task"].nunique()) for _, rows in (*panels, *theirs)]
    ends_row = [place % _COLUMNS == _COLUMNS - 1 or place == len(widths) - 1 for place in range(len(widths))]
    rights = [_LEGEND if last else _RIGHT for last in ends_row]
    figure, axes = canvas(_filled(widths), notes, height=3.0, right=rights, columns=_COLUMNS, below=1.15)
    bottom, top = _limits(data)
    for panel, (run, rows) in zip(axes, [*panels, *theirs], strict=True):
        panel.set_ylim(bottom, top)
        _draw(panel, rows)
        if rows["source"].iloc[0] == "published":
            mark_published(panel, f"{run}\n{_budget(rows)}")
        else:
            panel.set_title(f"Run {run}\n{_budget(rows)}")
    if shown := [name for name in CONFIGURATIONS[1:] if name in set(ours["series"])]:
        beside = axes[min(len(axes), _COLUMNS) - 1]
        words = [_KEYS.get(name, name) for name in shown]
        beside.legend(_handles(shown), words, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5)
    return figure


def _budget(rows: DataFrame) -> str:
    """Return the budget of the pruned configurations of a panel, and what it came to where rows know it."""
    pruned = rows[rows["budget"] != 1]
    if pruned.empty:
        return "no pruned configuration"
    held = pruned["realised_budget"].dropna()
    ends = dict.fromkeys(f"{100 * end:.1f}" for end in (held.min(), held.max())) if len(held) else ()
    return f"budget {100 * pruned['budget'].iloc[0]:g} %" + (f", realised {' to '.join(ends)} %" if ends else "")


def _unknown_alpha(data: DataFrame) -> list[str]:
    """Return a note that names the published models whose article does not say which alpha they had."""
    unknown = data.loc[data["source"].eq("published") & data["series"].eq("Decay") & data["alpha"].isna(), "run"]
    return [f"The alpha of Decay is not stated for {', '.join(unknown.unique())}."] if len(unknown) else []


def _limits(data: DataFrame) -> tuple[float, float]:
    """Return the ends of the one axis, in points: they hold all but what of Local lies below all others."""
    points = 100 * data[["difference", "difference_low", "difference_high"]]
    lowest = np.nanmin(points[data["series"] != "Local"])
    shown = points[points["difference"] >= lowest]
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    room = 0.05 * (high - low) or 1.0
    return low - room, high + room


def _filled(widths: Sequence[float]) -> list[float]:
    """Return the widths of the panels; those of a last row that is not full fill it."""
    full = len(widths) - len(widths) % _COLUMNS
    if not full or full == len(widths):
        return list(widths)
    room = sum(widths[:_COLUMNS]) + _COLUMNS * _RIGHT - (len(widths) - full) * _RIGHT
    return [*widths[:full], *(width * room / sum(widths[full:]) for width in widths[full:])]


_KEYS = {"H2O": "H2O, half recent", "Decay": f"Decay, alpha {PUBLISHED_ALPHA:g},\nno recent part"}
"""What the legend says of a series."""


def _handles(series: Sequence[str]) -> list[Line2D]:
    """Return the handles of the legend."""
    looks = [look(name.lower()) for name in series]
    return [Line2D([], [], color=kind.colour, marker=kind.marker, linestyle="") for kind in looks]


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
        bottom = axes.get_ylim()[0]
        for across, value in zip(x, 100 * points["difference"], strict=True):
            if value < bottom:
                words = f"\N{MINUS SIGN}{-value:.0f}\n\N{BLACK DOWN-POINTING TRIANGLE}"
                edge: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 7, "linespacing": 0.9}
                axes.text(across, bottom, words, color=look(name.lower()).colour, **edge)
    axes.axhline(0, color=BLACK, linewidth=1)
    full = rows[rows["series"] == "Full"].set_index("task")
    ticks = [f"{_tick(task)}: {100 * full['accuracy'].get(task, np.nan):.0f} %" for task in tasks]
    axes.set_xticks(range(len(tasks)), ticks, rotation=35, ha="right", fontsize=7.5)
    for tick, task in zip(axes.get_xticklabels(), tasks, strict=True):
        if task in full.index and full.loc[task, "low"] <= np.nan_to_num(full.loc[task, "chance"]):
            tick.set_color(GREY)
    axes.set_ylabel("accuracy minus Full's (points)")


decay_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Zero-shot accuracy of a pruned cache minus that of the whole one, after Fig. 4a and Table 2 of the Decay "
        "article, whose values stand in panels of their own, on the same axis: other models, other questions. H2O "
        "(half recent), Decay (alpha 0.2, no recent part) and Local keep 40 % of the tokens, or the budget nearest to "
        "it. The suites are asked from local files with prompts of their own; embedded questions count by mutual "
        "information. A number at the lower edge is a loss of Local below the panel. To see: "
        "how much H2O loses against Full, and how much of that Decay wins back; small models near chance (grey "
        "names) lose nothing by pruning, and then tell nothing."
    ),
    data=data,
    draw=draw,
)
