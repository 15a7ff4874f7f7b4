"""Table of the accuracy of Decay minus the accuracy of H2O, by scoring, by set, and for other rivals."""

from typing import Any

import numpy as np
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import pruning, questions
from formerlab.report.studies.policy_comparison import labelled
from formerlab.report.studies.pruning import configuration_label
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES, task_label
from formerlab.report.tables.blocks import first_row, in_words
from formerlab.results.read import Results

STUDY = "decay"
_SCORINGS = {
    "acc": "total probability",
    "acc_norm": "probability per character",
    "acc_mutual_info": "mutual information",
}
_COSTLY = ("arc_easy", "sciq", "blimp")
"""Sets on which H2O clearly loses accuracy; they were singled out after the result."""
_MEAN = "mean of the article's sets"
_COSTLY_MEAN = "mean of ARC-e, SciQ and BLiMP"
_REGISTERED, _BEST = "as registered", "alpha {:g}, the best on these questions"
_OFFICIAL, _LLAMA = "H2O of the official code for OPT", "fraction of LLaMA-2-7B-chat"


def published_fraction(model: str = "OPT-2.7B") -> float:
    """Return the fraction of H2O's lost accuracy that Decay wins back in the article, for the mean of its sets."""
    rows = published_rows(DECAY, "Fig 4a", "Table 2", by=("model", "setting"))
    mean = {
        kind: float(rows.loc[rows["model"].str.startswith(f"{model} {kind}"), "average"].iloc[0])
        for kind in ("Full", "H2O", "Decay")
    }
    return (mean["Decay"] - mean["H2O"]) / (mean["Full"] - mean["H2O"])


def _sets(tasks: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of the means, and the tasks of each mean that are present; without the article's sets, all."""
    names = [task.removesuffix(LOCAL_SUFFIX) for task in tasks]
    of_article = tuple(suite for suite in SUITES if suite in names) or tuple(names)
    return {_MEAN: of_article} | ({_COSTLY_MEAN: _COSTLY} if {*_COSTLY} <= {*names} else {})


def _compared(
    rows: DataFrame, decay: str = "Decay 0.2", h2o: str = "H2O", model: str = "OPT-2.7B"
) -> list[dict[Any, Any]]:
    """Return a row per task and mean with the contrasts of the full cache, Decay and H2O, paired by question."""
    rows = labelled(rows, ("Full", decay, h2o))
    chance, table = questions.chance_accuracy(rows), dict[str, Any]()
    for name, suites in _sets([*rows["task"].unique()]).items():
        configurations, means_by_task = questions.resampled_accuracies(rows, suites)
        labels = [configuration_label(*cell) for cell in configurations[["policy", "alpha", "recent"]].to_numpy()]
        if {*labels} != {"Full", decay, h2o}:
            return []
        full, ours, rival = (np.eye(len(labels))[labels.index(label)] for label in ("Full", decay, h2o))
        for task, means in means_by_task.items():
            is_mean = task.startswith(questions.MEAN_LABEL)
            label = name if is_mean else task_label(task).removesuffix(" (local)")
            tasks = [f"{suite}{LOCAL_SUFFIX}" for suite in suites] if task.endswith(f"({LOCAL_SUFFIX[1:]})") else suites
            guess = float(np.mean([chance.get(of_mean, np.nan) for of_mean in (tasks if is_mean else [task])]))
            row: dict[Any, Any] = {"set": label, "questions": means.questions, "chance": guess}
            row |= estimate("full", means.contrast(full)) | estimate("h2o_loses", means.contrast(full - rival))
            row |= estimate("decay_minus_h2o", means.contrast(ours - rival))
            beyond = ours - rival - published_fraction(model) * (full - rival)
            row |= estimate("beyond_published", means.contrast(beyond))
            for end in ("", "_low", "_high"):
                row[f"full_minus_chance{end}"] = row[f"full{end}"] - guess
            table[label] = row
    return [*table.values()]


def _best_alpha(rows: DataFrame) -> float:
    """Return the alpha with the highest mean accuracy on the article's sets."""
    suites = _sets([*rows["task"].unique()])[_MEAN]
    rows = rows[rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(suites)]
    means = rows.groupby(["alpha", "task"])["value"].mean().groupby("alpha").mean()
    return float(means.index[int(means.argmax())])


def _by_question(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the means under all conditions, then the sets by scoring."""
    rows = pruning.first_model_rows(rows)
    means, registered = rows["set"].eq(_MEAN), rows["condition"].eq(_REGISTERED)
    contrasts = expand_columns("h2o_loses[] decay_minus_h2o[] beyond_published[]")
    blocks = {f"{_MEAN}, cache of 40 %": rows.loc[means, ["condition", "scoring", "questions", *contrasts]]}
    chances = expand_columns("full_minus_chance[]")
    for scoring in _SCORINGS.values():
        shown = rows[registered & rows["scoring"].eq(scoring) & ~means]
        blocks[f"set by set, scored by {scoring}"] = shown[["set", "questions", "full", *chances, *contrasts]]
    return {name: block for name, block in blocks.items() if len(block)}


def _answer(rows: DataFrame) -> str:
    row = first_row(rows, set=_MEAN, condition=_REGISTERED, scoring=_SCORINGS["acc"])
    if row is None:
        return ""
    fraction = f"{100 * published_fraction():.0f} % of what H2O loses"
    return (
        f"Decay minus H2O, minus {fraction}: {in_words(row, 'beyond_published')} points "
        "(below zero: Decay wins back a smaller fraction than with OPT-2.7B)."
    )


@table(reads="prune_questions.csv", runs="released-*", needs="released-*", readers=_by_question, answer=_answer,
       columns="source run condition scoring set questions chance full[] full_minus_chance[] h2o_loses[] "
               "decay_minus_h2o[] beyond_published[]")  # fmt: skip
def decay_objections_table(results: Results, runs: list[str]) -> DataFrame:
    """Does Decay win back what H2O loses, by every scoring and on every set?

    - Decay 0.2 minus H2O on the same questions; sets have equal weights.
    - Brackets: 95 % interval over questions, for this one model.
    - Doubt: only the first row is registered; ARC-e, SciQ and BLiMP were singled out after the result; the best alpha
    was chosen on these questions; the official H2O retains fewer tokens.
    """
    rows = results.rows("prune_questions.csv", STUDY, runs)
    rows = pruning.nearest_budget_rows(rows)
    table = []
    for run, of_run in rows.groupby("run", sort=False):
        for metric, scoring in _SCORINGS.items():
            scored, shown = of_run[of_run["metric"].eq(metric)], {"run": run, "scoring": scoring}
            if scored.empty:
                continue
            table += [shown | {"condition": _REGISTERED} | row for row in _compared(scored)]
            if metric == "acc" and table:
                plain = scored[scored["policy"].eq("decay") & scored["recent"].eq(0)]
                alpha = _best_alpha(plain)
                others = {_BEST.format(alpha): {"decay": f"Decay {alpha:g}"}}
                others |= {_OFFICIAL: {"h2o": "H2O (local statistics)"}, _LLAMA: {"model": "LLaMA-2-7B-chat"}}
                for condition, arms in others.items():
                    table += [shown | {"condition": condition} | row for row in _compared(scored, **arms)
                              if row["set"] == _MEAN]  # fmt: skip
    return DataFrame(table)
