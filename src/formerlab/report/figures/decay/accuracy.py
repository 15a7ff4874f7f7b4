"""Zero-shot accuracy under pruning minus that with the whole cache (Decay article, Fig 4a and Table 2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.drawings import plot
from formerlab.report.names import RELEASED
from formerlab.report.panel import Panel, sheet
from formerlab.report.pruning import PUBLISHED_ALPHA, model_of
from formerlab.report.published import DECAY, published
from formerlab.report.questions import MEAN, SUITES, accuracies, answers, chance, title
from formerlab.results.read import Results

STUDY = "decay"


def published_accuracies() -> DataFrame:
    """Return the accuracies of the article by model, configuration and task.

    A model is called `... Decay 0+40 alpha=0.2`: percents kept as recent, and by score.
    """
    rows = published(DECAY, "Fig 4a", "Table 2")
    said = rows["model"].str.extract(r"(\S+) (\S+)(?: (\d+)\+(\d+))?(?: alpha=([\d.]+))?")
    recent, chosen = said[2].astype(float), said[3].astype(float)
    table = DataFrame({"run": said[0], "series": said[1], "task": rows["metric"].str.removesuffix("_acc")})
    table = table.assign(budget=((recent + chosen) / 100).fillna(1.0), recent=recent / (recent + chosen),
                         alpha=said[4].astype(float), accuracy=rows["value"].astype(float) / 100,
                         source="published")  # fmt: skip
    full = table[table["series"] == "Full"].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(full, on=["run", "task"])
    return table.assign(difference=table["accuracy"] - table["full"]).drop(columns="full")


def draw(data: DataFrame) -> Figure:
    """Draw a panel per run, then one per published model, all on one axis."""
    ends = {name: 100 * data[name] for name in ("difference", "difference_low", "difference_high")}
    order = {task: number for number, task in enumerate((*SUITES, *(f"{suite}_local" for suite in SUITES)))}
    full = data[data["series"] == "Full"].set_index(["run", "task"])
    names = [_name(full, run, task) for run, task in zip(data["run"], data["task"], strict=True)]
    rows = data.assign(**ends, data_set="", name=names, order=data["task"].map(order),
                       title=data["run"].map(_titles(data)), look=data["series"].str.lower())  # fmt: skip
    rows = rows[rows["series"] != "Full"].sort_values(["source", "run", "order"], kind="stable").drop(columns="seeds")
    low, high = rows[[*ends]].min().min(), rows[[*ends]].max().max()
    panel = Panel("difference", "name", by="series", kind="forest", each="title", zero=0.0, name="legend", style="look",
                  xlabel="accuracy minus Full's (points)",
                  finish=lambda axes, _: axes.set_xlim(low - 1, high + 1))  # fmt: skip
    return sheet(panel, wanted=("H2O", "Decay", "Local"))(rows)


def _name(full: DataFrame, run: str, task: str) -> str:
    """Return what stands beside a task: its name, and the accuracy of the whole cache."""
    words = title(task).replace(MEAN, "mean of five").removesuffix(" (local)")
    if (run, task) not in full.index:
        return words
    whole: Any = full.loc[(run, task)]
    guess = ", chance" if whole.get("low", np.nan) <= np.nan_to_num(whole["chance"]) else ""
    return f"{words}: {100 * whole['accuracy']:.0f} %{guess}"


def _titles(data: DataFrame) -> dict[str, str]:
    """Return the title of the panel of each run: the model, and the budget that it came to where rows know it."""
    found = {}
    for run, rows in data[data["budget"] != 1].groupby("run", sort=False):
        held = (100 * rows["realised_budget"].dropna()).map("{:.1f}".format)
        realised = f", realised {' to '.join(sorted(set(held)))} %" if len(held) else ""
        name = model_of(str(run))
        found[str(run)] = f"{RELEASED.get(name, name)}, budget {100 * rows['budget'].iloc[0]:g} %{realised}"
    return found


@plot(
    reads=("prune_questions.csv", "run.json"),
    runs=("decoder*", "released-*"),
    draw=draw,
)
def decay_accuracy(results: Results, runs: Sequence[str]) -> DataFrame:
    """Zero-shot accuracy of a pruned cache minus that of the whole one, after Fig. 4a and Table 2 of the Decay article,
    whose values stand in panels of their own, on the same axis: other models, other questions. H2O (half recent), Decay
    (alpha 0.2, no recent part) and Local keep 40 % of the tokens, or the budget nearest to it. The suites are asked
    from local files with prompts of their own; embedded questions count by mutual information. To see: how much H2O
    loses against Full, and how much of that Decay wins back; models near chance lose nothing by pruning, and then tell
    nothing. Beside each suite stands the accuracy of the whole cache, and whether that is no better than guessing. Bars
    are 95 % intervals of the difference, paired by question, over seeds where there are several; none were published,
    nor the alpha of LLaMA-2-7B-chat.
    """
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
