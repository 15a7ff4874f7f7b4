"""Tables of the accuracy on questions with pruned caches."""

from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.quantity import Examples
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import pruning, questions
from formerlab.report.studies.pruning import CONFIGURATION, is_published_setting, label_and_sort, model_label
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES, accuracies, load_answers, task_label
from formerlab.report.studies.two_fold import choose_alphas, chosen_answers, half_indices, split_halves
from formerlab.report.tables.blocks import claim_runs
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"
_CONDITIONS = {
    "budgets-": "cache of {}, 100 questions of each set",
    "leading-": "cache of {}, after an end-of-text token",
    "shots-": "cache of {}, five examples in the prompt",
}
"""Condition of the questions, with a field for the budget, by prefix of the name of a run."""
_NAMED = (*SUITES, "copa", "sciq", "blimp")
"""Sets with a published name. A run that answers them shows no others."""
_MEAN = "mean"
_POLICIES = {"Full": "Full", "H2O 20+20": "H2O", "Decay 0+40": "Decay 0.2"}
_OTHER_ALPHAS = r"Decay (?!0$|0\.2|0\.95, half)"


def _published_suites() -> DataFrame:
    """Return a row per published model, policy and set."""
    wide = published_rows(DECAY, "Fig 4a", "Table 2", by=("model", "setting"))
    names = {f"{suite}_acc": task_label(suite) for suite in SUITES} | {"average": _MEAN}
    rows = wide.rename(columns=names).melt("model", [*names.values()], "set", "accuracy")
    models = rows["model"].str.removesuffix(" alpha=0.2").str.partition(" ")
    rows = rows.assign(run=models[0], configuration=models[2].map(_POLICIES), accuracy=rows["accuracy"] / 100)
    for name, policy in ("minus_full", "Full"), ("minus_h2o", "H2O"):
        base = rows[rows["configuration"] == policy].set_index(["run", "set"])["accuracy"].rename("base")
        rows[name] = rows["accuracy"] - rows.join(base, on=["run", "set"])["base"]
    return rows


def _policies_then_sets(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the means of the policies beside the published ones, then Decay and H2O by set and condition."""
    if rows["source"].eq("published").any():
        return {}
    main = pruning.first_model_rows(rows)
    budgets = main.loc[main["policy"] != "full", "budget"]
    at_budget = main[main["budget"].eq(budgets.iloc[0]) | main["policy"].eq("full")]
    means = at_budget[at_budget["set"].eq(_MEAN) & ~at_budget["configuration"].str.match(_OTHER_ALPHAS)]
    size = means.loc[means["configuration"] == "H2O", "realised_budget"].max()
    means = means[means["realised_budget"].div(size).sub(1).abs().lt(0.01) | means["policy"].eq("full")]
    means = means.sort_values("accuracy", ascending=False)
    shown = means[["configuration", *expand_columns("accuracy minus_h2o[]"), "bold"]]
    for model, published in _published_suites().query("set == @_MEAN").groupby("run", sort=False):
        level = published.set_index("configuration")["minus_h2o"].replace(0.0, np.nan)
        shown = shown.assign(**{f"{model}, published ↑": 100 * shown["configuration"].map(level)})
    heading = f"{model_label(str(main['run'].iloc[0]))}, cache of {pruning.budget_text(budgets.iloc[0])}"
    return {f"{heading}, mean of the sets": shown, "Decay and H2O, set by set": _compared(at_budget, rows)}


def _compared(main: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the accuracies of Full, H2O and Decay: by set in the main run, and the means under other conditions."""
    article = {_MEAN, *map(task_label, SUITES)}
    outside = ~main["set"].isin(article) & (article <= {*main["set"]})
    conditions = [main.assign(set=main["set"].mask(outside, main["set"] + " (not in the mean)"))]
    for prefix, words in _CONDITIONS.items():
        means = rows[rows["run"].str.startswith(prefix) & rows["set"].eq(_MEAN)]
        names = means["budget"].map(pruning.budget_text).map(words.format)
        conditions.append(means.assign(set=names))
    rows = pd.concat(conditions, ignore_index=True)
    published = is_published_setting(rows)
    table = rows[published & rows["policy"].eq("decay")].rename(
        columns={"accuracy": "decay"}
        | dict(zip(*map(expand_columns, ("minus_h2o[]", "decay_minus_h2o[]")), strict=True))
    )
    h2o = rows[published & rows["policy"].eq("h2o")].set_index(["run", "set"])["accuracy"].rename("h2o")
    full = rows[rows["policy"].eq("full")].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(h2o, on=["run", "set"]).join(full, on=["run", "task"])
    columns = ["set", "questions", "chance", "full", "h2o", "decay", *expand_columns("decay_minus_h2o[]"), "bold"]
    return table.sort_values("set", key=lambda names: names != _MEAN, kind="stable")[columns]


@table(reads="prune_questions.csv", published=_published_suites, readers=_policies_then_sets,
       columns="source run configuration policy -alpha -recent budget realised_budget task set accuracy[] minus_full[] "
               "minus_h2o[] chance questions seeds bold")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Does Decay answer more questions than H2O? Accuracy with pruned caches, after Fig. 4a and Table 2 of the Decay
    article. The mean weighs the sets alike (the article's five: OpenBookQA, WinoGrande, ARC-e, ARC-c and PIQA; with
    five examples COPA in place of ARC). In brackets: 95 % interval over questions, paired by question, for this one
    model. Bold: the difference on which the verdict rests. In the second block, Decay has alpha 0.2 and no recent
    tokens. H2O without recent tokens is Decay with alpha 1. Published: the same difference to H2O for the article's
    models, with other prompts. Sets on which Full is at chance (the accuracy of guessing) show no effect of pruning.
    The CSV has all policies, also those whose cache differs in size from H2O's, and all values of alpha.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows.assign(task=rows["task"].str.replace("_leading|_5_shots", "", regex=True))
    named = rows["task"].str.removesuffix(LOCAL_SUFFIX).isin(_NAMED)
    rows = rows[named | ~named.groupby(rows["run"]).transform("any")]
    released = rows["run"].str.startswith(pruning.RELEASED_RUNS)
    rows = pd.concat([pruning.nearest_budget_rows(rows[released]), rows[~released]])
    if rows["policy"].eq("full").all():
        return DataFrame()
    tables, chance = [], questions.chance_accuracy(rows)
    for _, of_run in rows.groupby("run", sort=False):
        tasks = of_run["task"].str.removesuffix(LOCAL_SUFFIX).unique()
        suites, full = SUITES if {*SUITES} <= {*tasks} else tuple(tasks), of_run["policy"] == "full"
        for budget in of_run.loc[~full, "budget"].unique():
            tables.append(accuracies(of_run[full | of_run["budget"].eq(budget)], ("full", "h2o"), suites))
    table = pd.concat(tables, ignore_index=True).drop_duplicates([*CONFIGURATION, "task"])
    table = table.rename(columns=lambda name: name.replace("difference", "minus_full"))
    itself = table["policy"].eq("full"), table["policy"].eq("h2o") & is_published_setting(table)
    for name, is_base in zip(("minus_full", "minus_h2o"), itself, strict=True):
        table.loc[is_base, expand_columns(f"{name}[]")] = np.nan
    is_mean = table["task"].str.startswith(questions.MEAN_LABEL)
    sets = table["task"].map(task_label).str.removesuffix(" (local)").mask(is_mean, _MEAN)
    compared = claim_runs(results, STUDY, claim := "decay-beats-h2o")[claim]
    bold = is_mean & table["run"].isin(compared) & table["policy"].eq("decay") & is_published_setting(table)
    return table.assign(set=sets, chance=table["task"].map(chance), bold=bold)


LARGEST_ALPHA = 0.9
"""Largest alpha of the claim on the best alpha of a task."""


@table(reads="prune_questions.csv", readers=pruning.by_model,
       columns="source run budget task chance own~alphas common~alphas acc_own acc_common gain[] questions bold"
       )  # fmt: skip
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task? Accuracy of Decay with an alpha that is chosen for each set of questions
    (own) and with one alpha for all sets (common). The gain is the difference. Each set is halved by a hash of its ids,
    and an alpha is chosen on one half and evaluated on the other, so two alphas may be shown. Alphas are 0 to 0.9, the
    grid of the claim, without recent tokens. In brackets: 95 % interval of the mean over questions, with alphas that
    are chosen anew in every resample. Bold: the gain on which the verdict rests. Sets at chance show no effect.
    """
    rows = load_answers(results, STUDY, runs)
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0) & (rows["alpha"] <= LARGEST_ALPHA)]
    table, chance = [], questions.chance_accuracy(rows)
    compared = claim_runs(results, STUDY, claim := "decay-best-alpha-depends-on-task")[claim]
    for (run, budget), group in rows.groupby(["run", "budget"], sort=False):
        alphas, grids, names = questions.answer_grids(group.sort_values("alpha", kind="stable"))
        if article := [task for task in grids if task.removesuffix(LOCAL_SUFFIX) in SUITES]:
            grids, names = {task: grids[task] for task in article}, {task: names[task] for task in article}
        halves = half_indices(names)
        grids = {task: grid for task, grid in grids.items() if len(set(halves[task])) == 2}
        if len(alphas) < 2 or not grids:
            continue
        own, common = (choose_alphas(grids, halves, common=common) for common in (False, True))
        by_task = []
        for task, grid in grids.items():
            row: dict[str, Any] = {"task": task_label(task).removesuffix(" (local)"), "chance": chance.get(task)}
            for name, chosen in (("own", own[task]), ("common", common[task])):
                row[f"{name} alphas"] = ", ".join(sorted({f"{alpha:g}" for alpha in alphas["alpha"][chosen.ravel()]}))
                row[f"acc_{name}"] = chosen_answers(grid, chosen, halves[task]).mean()
            by_task.append(row | {"gain": row["acc_own"] - row["acc_common"], "questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = estimate("gain", (by_own - by_common).interval(CONFIDENCE)) | {"task": _MEAN, "bold": run in compared}
        mean |= {name: np.mean([row[name] for row in by_task]) for name in ("acc_own", "acc_common")}
        table += [{"run": run, "budget": budget} | row for row in (*by_task, mean)]
    return DataFrame(table)


@table(reads="prune_questions.csv", runs="float32-* released-*", needs="float32-*",
       readers=pruning.by_model,
       columns="source run configuration budget acc_float32 acc_model difference[] judged_alike questions"
       )  # fmt: skip
def decay_precision_table(results: Results, runs: list[str]) -> DataFrame:
    """Does the model's own precision change accuracies? The same questions (100 of each of the article's five sets)
    with the same policies, in the precision of the model (bfloat16, with weights in 4 bits) and in float32 with the
    same weights. A difference is the former minus the latter. In brackets: 95 % interval of the paired difference over
    questions; an effect that is smaller than the interval cannot be seen.
    """
    rows = load_answers(results, STUDY, runs)
    precise = rows["run"].str.startswith("float32-")
    rounded = rows[~precise].assign(run=rows["run"].str.replace(pruning.RELEASED_RUNS, "float32-"))
    pairs = rows[precise].merge(rounded, on=[*CONFIGURATION, "task", "example"], suffixes=("_precise", "_rounded"))
    table = []
    for key, group in pairs.groupby(CONFIGURATION, sort=False, dropna=False):
        of_float32, of_model = group["value_precise"].to_numpy(), group["value_rounded"].to_numpy()
        row = dict(zip(CONFIGURATION, key, strict=True)) | {
            "acc_float32": of_float32.mean(),
            "acc_model": of_model.mean(),
        }
        row |= estimate("difference", over_examples((of_model - of_float32)[None]))
        table.append(row | {"judged_alike": (of_float32 == of_model).mean(), "questions": len(group)})
    return label_and_sort(DataFrame(table)) if table else DataFrame()
