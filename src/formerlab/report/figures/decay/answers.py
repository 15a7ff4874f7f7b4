"""Zero-shot accuracy under pruning, by suite and by the alpha of Decay (Decay article, Fig 4 and Table 2)."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.drawings import plot, shown_columns
from formerlab.report.figures.decay.loss import level_with_h2o, mark_alpha
from formerlab.report.panel import Panel, sheet
from formerlab.report.published import DECAY, published
from formerlab.report.runs import n_seeds
from formerlab.report.studies.pruning import as_published, at_budget, labels, model_of, one_model, size_of
from formerlab.report.studies.questions import MEAN, SUITES, accuracies, answers, chance, title
from formerlab.results.read import Results

STUDY = "decay"
ENDS = ("difference", "difference_low", "difference_high")


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


def _task(task: str) -> str:
    return title(task).replace(MEAN, "mean of five").removesuffix(" (local)")


def _beside(full: DataFrame, run: str, task: str) -> str:
    """Return what stands beside a task: its name, and the accuracy of the whole cache."""
    if (run, task) not in full.index:
        return _task(task)
    whole: Any = full.loc[(run, task)]
    guess = ", chance" if whole.get("low", np.nan) <= np.nan_to_num(whole["chance"]) else ""
    return f"{_task(task)}: {100 * whole['accuracy']:.0f} %{guess}"


def _title(run: str, rows: DataFrame) -> str:
    """Return the title of the panel of a run: the model, and the budget that it came to where rows know it."""
    held = sorted(set((100 * rows["realised_budget"].dropna()).map("{:.1f}".format)))
    realised = f", realised {' to '.join(held)} %" if held else ""
    return f"{model_of(run)}, budget {size_of(rows['budget'].iloc[0])}{realised}"


@plot(reads="prune_questions.csv", runs="decoder* released-*", draw=sheet(
    Panel("_difference", "_name", by="_series", kind="forest", each="_title", zero=0.0, name="legend",
          xlabel="accuracy minus Full's (points)", alike="x"),
    notes=lambda rows: [], wanted=("H2O", "Decay", "Local"), order="source run _order"
))  # fmt: skip
def decay_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Zero-shot accuracy of a pruned cache minus that of the whole one, after Fig. 4a and Table 2 of the Decay article,
    whose values stand in panels of their own: other models, other questions. H2O (half recent), Decay (alpha 0.2, no
    recent part) and Local keep 40 % of the tokens, or the budget nearest to it. The suites are asked from local files
    with prompts of their own; embedded questions count by mutual information. To see: how much H2O loses against Full,
    and how much of that Decay wins back; models near chance lose nothing by pruning, and then tell nothing. Beside each
    suite stands the accuracy of the whole cache. Bars are 95 % intervals, paired by question; none were published, nor
    the alpha of LLaMA-2-7B-chat.
    """
    rows = answers(results, STUDY, runs)
    table = accuracies(at_budget(rows[as_published(rows) | rows["policy"].isin(["local", "full"])]))
    table = table.assign(series=labels(table["policy"]), chance=table["task"].map(chance(rows)))
    rows = pd.concat([table, published_accuracies()], ignore_index=True)
    order = {task: number for number, task in enumerate((*SUITES, *(f"{suite}_local" for suite in SUITES)))}
    whole = rows["series"] == "Full"
    full, pruned = rows[whole].set_index(["run", "task"]), rows[rows["budget"] != 1].groupby("run")
    return rows.assign(
        **(100 * rows[[*ENDS]]).add_prefix("_"),
        _name=[_beside(full, run, task) for run, task in zip(rows["run"], rows["task"], strict=True)],
        _order=rows["task"].map(order),
        _title=rows["run"].map({run: _title(str(run), own) for run, own in pruned}),
        _series=rows["series"].mask(whole),
        _look=rows["series"].str.lower(),
        _data_set="",
    )


@plot(reads="prune_questions.csv", runs="decoder released-*", draw=sheet(
    Panel("alpha", "_difference", by="_series", each="_title", zero=0.0, name="legend", empty="_level",
          xlabel="alpha", ylabel="minus Full's (points)", style="policy", finish=mark_alpha, alike="y"),
    notes=lambda rows: [
        f"Budget {size_of(rows['budget'].iloc[0], ' of the tokens')}; {n_seeds([rows['seeds'].max()])}."
    ],
    wanted=["H2O"], columns=3, height=1.4
))  # fmt: skip
def decay_alpha_accuracy(results: Results, runs: list[str]) -> DataFrame:
    """Accuracy against the forgetting factor alpha, minus that with the whole cache; after Fig. 4b and 4c of the Decay
    article, whose points exist only as an image. Decay has no recent part; H2O (half recent) at the same budget is a
    line in the band of its interval. Bars: 95 % interval, paired by question. A point is filled where that of the
    difference of Decay and H2O does not include 0, each alpha by itself; dotted is 0.2, the published choice. To see:
    where points are filled, and whether the best alpha differs between data sets by more than the bars. The best point
    of a curve is no fair estimate; decay_tasks_table chooses on one half of the questions and judges on the other.
    """
    rows = one_model(answers(results, STUDY, runs))
    plain = rows["policy"].eq("decay") & rows["recent"].eq(0)
    counts = rows[plain].groupby("budget")["alpha"].nunique()
    if counts.empty or counts.max() < 2:
        return DataFrame()
    half = rows["policy"].eq("h2o") & rows["recent"].eq(0.5)
    chosen = rows[(plain | half) & rows["budget"].eq(float(str(counts.idxmax()))) | rows["policy"].eq("full")]
    table, minus_h2o = accuracies(chosen, against=("full", "h2o")), shown_columns("minus_h2o[]")
    table = table[[*table.columns.drop(minus_h2o), *minus_h2o]]
    full = table[table["policy"] == "full"].set_index("task")["accuracy"]
    told = [f"{_task(task)} (n = {count:.0f}, Full {100 * full.get(task, np.nan):.0f} %)"
            for task, count in zip(table["task"], table["questions"], strict=True)]  # fmt: skip
    some = table.groupby("task")["accuracy"].transform("max").gt(0) & table["policy"].ne("full")
    return table.assign(
        chance=table["task"].map(chance(rows)),
        **(100 * table[[*ENDS]]).add_prefix("_"),
        _title=told,
        _series=labels(table["policy"]).where(some),
        _level=level_with_h2o(table, "minus_h2o"),
        _data_set="",
    )
