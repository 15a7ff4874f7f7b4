"""Zero-shot accuracy under pruning minus that with the whole cache (Decay article, Fig 4a and Table 2)."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import Plot
from formerlab.report.names import RELEASED
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import PUBLISHED_ALPHA, model_of
from formerlab.report.published import DECAY, published
from formerlab.report.questions import MEAN, SUITES, accuracies, answers, chance, title
from formerlab.report.runs import missing_note
from formerlab.report.style import look
from formerlab.results.read import Results

STUDY = "decay"
CONFIGURATIONS = ("Full", "H2O", "Decay", "Local")


def data(results: Results, runs: Sequence[str]) -> DataFrame:
    """Return the accuracies of four configurations by task, and the published ones."""
    rows = answers(results, STUDY, runs)
    budgets = [budget for budget in rows["budget"].unique() if budget != 1]
    budget = min(budgets, key=lambda each: abs(each - 0.4), default=0.4)
    policy, alpha, recent = rows["policy"], rows["alpha"], rows["recent"]
    half, plain = policy.eq("h2o") & recent.eq(0.5), policy.eq("decay") & recent.eq(0) & alpha.eq(PUBLISHED_ALPHA)
    wanted = rows["budget"].eq(budget) & (half | plain | policy.eq("local"))
    table = accuracies(rows[wanted | policy.eq("full")])
    names = {"full": "Full", "h2o": "H2O", "decay": "Decay", "local": "Local"}
    table = table.assign(series=table["policy"].map(names), chance=table["task"].map(chance(rows)))
    return pd.concat([table, published_accuracies()], ignore_index=True)


def published_accuracies() -> DataFrame:
    """Return the accuracies of the article by model, configuration and task."""
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
    """Draw a panel per run, then one per published model, all on one axis."""
    ours = data[data["source"] == "ours"]
    unknown = data.loc[data["source"].eq("published") & data["series"].eq("Decay") & data["alpha"].isna(), "run"]
    notes = [
        "Beside each suite: accuracy with the whole cache, and whether that is no better than guessing. Bars: 95 % "
        "interval of the difference, paired by question, over seeds where there are several; none were published.",
        f"The alpha of Decay is not stated for {', '.join(unknown.unique())}." if len(unknown) else "",
        *missing_note(list(ours["series"]), list(CONFIGURATIONS)),
    ]
    ends = ("difference", "difference_low", "difference_high")
    points = {name: 100 * data[name] for name in ends}
    full = data[data["series"] == "Full"].set_index(["run", "task"])
    names = [_name(full, run, task) for run, task in zip(data["run"], data["task"], strict=True)]
    order = {task: place for place, task in enumerate((*SUITES, *(f"{suite}_local" for suite in SUITES)))}
    rows = data.assign(**points, data_set="", name=names, place=data["task"].map(order).fillna(99), title=_titles(data))
    rows = rows[rows["series"] != "Full"].sort_values(["source", "run", "place"], kind="stable").drop(columns="seeds")
    low, high = rows[[*ends]].min().min(), rows[[*ends]].max().max()
    panel = Panel("difference", "name", by="series", kind="forest", each="title", zero=0.0, name="legend",
                  xlabel="accuracy minus Full's (points)", style={name: look(name.lower()) for name in CONFIGURATIONS},
                  finish=lambda axes, _: axes.set_xlim(low - 1, high + 1))  # fmt: skip
    return sheet(panel, notes=notes)(rows)


def _name(full: DataFrame, run: str, task: str) -> str:
    """Return what stands beside a task: its name, and the accuracy of the whole cache."""
    words = title(task).replace(MEAN, "mean of five").removesuffix(" (local)")
    if (run, task) not in full.index:
        return words
    whole: Any = full.loc[(run, task)]
    guess = ", chance" if whole.get("low", np.nan) <= np.nan_to_num(whole["chance"]) else ""
    return f"{words}: {100 * whole['accuracy']:.0f} %{guess}"


def _titles(data: DataFrame) -> "pd.Series[str]":
    """Return the title of the panel of each row: the model, its budget, and what that came to where rows know it."""
    found = {}
    for run, rows in data.groupby("run", sort=False):
        pruned = rows[rows["budget"] != 1]
        held = pruned["realised_budget"].dropna()
        ends = dict.fromkeys(f"{100 * end:.1f}" for end in (held.min(), held.max())) if len(held) else ()
        budget = f"budget {100 * pruned['budget'].iloc[0]:g} %" if len(pruned) else "no pruned configuration"
        name = model_of(str(run))
        found[run] = f"{RELEASED.get(name, name)}, {budget}" + (f", realised {' to '.join(ends)} %" if ends else "")
    return data["run"].map(found)


decay_accuracy = Plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder*", "released-*"),
    caption=(
        "Zero-shot accuracy of a pruned cache minus that of the whole one, after Fig. 4a and Table 2 of the Decay "
        "article, whose values stand in panels of their own, on the same axis: other models, other questions. H2O "
        "(half recent), Decay (alpha 0.2, no recent part) and Local keep 40 % of the tokens, or the budget nearest to "
        "it. The suites are asked from local files with prompts of their own; embedded questions count by mutual "
        "information. To see: how much H2O loses against Full, and how much of that Decay wins back; models near "
        "chance lose nothing by pruning, and then tell nothing."
    ),
    data=data,
    draw=draw,
)
