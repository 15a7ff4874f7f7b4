"""Zero-shot accuracy under pruning, by suite and by alpha of Decay (Decay article, Fig 4 and Table 2)."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, plot
from formerlab.report.figures.decay.loss import level_with_h2o, mark_alpha
from formerlab.report.panel import Panel, layout
from formerlab.report.published import DECAY, published
from formerlab.report.runs import seed_count
from formerlab.report.studies.pruning import (
    budget_text,
    first_model_rows,
    is_published_setting,
    model_label,
    nearest_budget_rows,
    policy_labels,
)
from formerlab.report.studies.questions import MEAN_LABEL, SUITES, accuracies, chance_accuracy, load_answers, task_label
from formerlab.results.read import Results

STUDY = "decay"
ENDS = ("difference", "difference_low", "difference_high")


def published_accuracies() -> DataFrame:
    """Return the accuracies of the article by model, configuration and task.

    A published model is named `... Decay 0+40 alpha=0.2`, with the percentages of recent and of selected tokens.
    """
    rows = published(DECAY, "Fig 4a", "Table 2")
    fields = rows["model"].str.extract(r"(\S+) (\S+)(?: (\d+)\+(\d+))?(?: alpha=([\d.]+))?")
    recent, selected = fields[2].astype(float), fields[3].astype(float)
    table = DataFrame({"run": fields[0], "series": fields[1], "task": rows["metric"].str.removesuffix("_acc")})
    table = table.assign(budget=((recent + selected) / 100).fillna(1.0), recent=recent / (recent + selected),
                         alpha=fields[4].astype(float), accuracy=rows["value"].astype(float) / 100,
                         source="published")  # fmt: skip
    full = table[table["series"] == "Full"].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(full, on=["run", "task"])
    return table.assign(difference=table["accuracy"] - table["full"]).drop(columns="full")


def _task(task: str) -> str:
    return task_label(task).removesuffix(" (local)").replace(MEAN_LABEL, "mean").replace("average", "mean")


def _beside(full: DataFrame, run: str, task: str) -> str:
    """Return the label of a task: its name, the accuracy with the full cache in percent, and a star at chance."""
    if (run, task) not in full.index:
        return _task(task)
    accuracies_of_full: Any = full.loc[(run, task)]
    at_chance = accuracies_of_full.get("low", np.nan) <= np.nan_to_num(accuracies_of_full["chance"])
    return f"{_task(task)} {100 * accuracies_of_full['accuracy']:.0f}{'*' * bool(at_chance)}"


def _accuracy_notes(rows: DataFrame) -> list[str]:
    ours = rows[rows["source"] == "ours"]
    sizes = " or ".join(dict.fromkeys(ours["budget"].map(budget_text)))
    measured = " to ".join(sorted(set((100 * ours["realised_budget"].dropna()).map("{:.1f}".format))))
    return [
        f"Cache of {sizes}{f' ({measured} % measured)' * bool(measured)}; {seed_count(rows['seeds'])}, "
        f"{rows['questions'].min():.0f} to {rows['questions'].max():.0f} questions; bars: 95 % interval over them, "
        "paired; beside a suite: its accuracy with the full cache (%), a star: at chance."
    ]


@plot(reads="prune_questions.csv", runs="decoder* released-*", draw=layout(
    Panel("_difference", "_name", by="_series", kind="forest", each="_title", zero=0.0, name="legend",
          xlabel="accuracy minus\nfull cache (points)", alike="x"),
    notes=_accuracy_notes, wanted=("H2O", "Decay", "Local"), columns=3, order="source run _order"
))  # fmt: skip
def decay_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy of a pruned cache minus that of the full cache, after Fig. 4a and Table 2 of the Decay
    article. Separate panels show the published values, which are from other models and other questions. H2O (half
    recent), Decay (alpha 0.2, no recent part) and Local retain 40 % of the tokens, or the nearest budget. The suites
    are read from local files, with our own prompts; answers to embedded questions are scored by mutual information.
    Bars are 95 % intervals, paired by question; the article gives no intervals, and no alpha for LLaMA-2-7B-chat. To
    see: how much accuracy H2O loses against the full cache, and how much of it Decay recovers; a model near chance
    loses nothing by pruning, so it shows nothing about pruning.
    """
    rows = load_answers(results, STUDY, runs)
    table = accuracies(nearest_budget_rows(rows[is_published_setting(rows) | rows["policy"].isin(["local", "full"])]))
    table = table.assign(series=policy_labels(table["policy"]), chance=table["task"].map(chance_accuracy(rows)))
    rows = pd.concat([table, published_accuracies()], ignore_index=True)
    suites = [MEAN_LABEL, f"{MEAN_LABEL} (local)", "average", *SUITES, *(f"{suite}_local" for suite in SUITES)]
    order = {task: number for number, task in enumerate(suites)}
    is_full = rows["series"] == "Full"
    full = rows[is_full].set_index(["run", "task"])
    return rows.assign(
        **(100 * rows[[*ENDS]]).add_prefix("_"),
        _name=[_beside(full, run, task) for run, task in zip(rows["run"], rows["task"], strict=True)],
        _order=rows["task"].map(order),
        _title=rows["run"].map(model_label),
        _series=rows["series"].mask(is_full),
        _look=rows["series"].str.lower(),
        _data_set="",
    )


@plot(reads="prune_questions.csv", runs="decoder released-*", draw=layout(
    Panel("alpha", "_difference", by="_series", each="_title", zero=0.0, name="legend", empty="_level",
          xlabel="alpha", ylabel="points minus\nfull cache", style="policy", finish=mark_alpha, alike="y"),
    notes=lambda rows: [
        f"Budget {budget_text(rows['budget'].iloc[0], ' of the tokens')}; {seed_count([rows['seeds'].max()])}; "
        "bars and band: 95 % interval, paired by question."
    ],
    wanted=["H2O"], columns=3, height=1.4
))  # fmt: skip
def decay_alpha_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy against the forgetting factor alpha, minus accuracy with the full cache; after Fig. 4b and 4c of the
    Decay article, whose points exist only as an image. Decay has no recent part. H2O (half recent) at the same budget
    is a line within the band of its interval. Bars: 95 % interval, paired by question. A filled point means that the
    interval of the difference between Decay and H2O excludes 0, each alpha by itself. Dotted: the published alpha of
    0.2. To see: which points are filled, and whether the best alpha differs between data sets by more than the bars.
    The best point of a curve is a biased estimate; decay_tasks_table chooses alpha on one half of the questions and
    evaluates it on the other half.
    """
    rows = first_model_rows(load_answers(results, STUDY, runs))
    without_recent = rows["policy"].eq("decay") & rows["recent"].eq(0)
    counts = rows[without_recent].groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    half = rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    chosen = rows[(without_recent | half) & rows["budget"].eq(float(str(counts.idxmax()))) | rows["policy"].eq("full")]
    table, minus_h2o = accuracies(chosen, against=("full", "h2o")), expand_columns("minus_h2o[]")
    table = table[[*table.columns.drop(minus_h2o), *minus_h2o]]
    full = table[table["policy"] == "full"].set_index("task")["accuracy"]
    titles = [f"{_task(task)} (n = {count:.0f}, full cache {100 * full.get(task, np.nan):.0f} %)"
            for task, count in zip(table["task"], table["questions"], strict=True)]  # fmt: skip
    plotted = table.groupby("task")["accuracy"].transform("max").gt(0) & table["policy"].ne("full")
    return table.assign(
        chance=table["task"].map(chance_accuracy(rows)),
        **(100 * table[[*ENDS]]).add_prefix("_"),
        _title=titles,
        _series=policy_labels(table["policy"]).where(plotted),
        _level=level_with_h2o(table, "minus_h2o"),
        _data_set="",
    )
