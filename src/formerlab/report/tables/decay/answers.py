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
from formerlab.report.studies.pruning import CONFIGURATION, is_published_setting, model_label
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES, accuracies, load_answers, task_label
from formerlab.report.studies.two_fold import choose_alphas, chosen_answers, half_indices, split_halves
from formerlab.report.tables.blocks import claim_verdicts, first_row, in_words, with_verdict, with_verdicts
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"
_CONDITIONS = {
    "budgets-": "cache of {}, 100 questions of each set",
    "leading-": "cache of {}, after an end-of-text token",
    "shots-": "cache of {}, five examples in the prompt",
    "float32-": "cache of {}, weights computed in float32, 100 questions of each set",
}
"""Condition of the questions, with a field for the budget, by prefix of the name of a run."""
_NAMED = (*SUITES, "copa", "sciq", "blimp")
"""Sets with a published name. If a run has any of these sets, its other sets are omitted."""
_MEAN = "mean"
_POLICIES = {"Full": "Full", "H2O 20+20": "H2O", "Decay 0+40": "Decay 0.2"}
_BUDGET = 0.4
_CLAIMS = {
    "decay-beats-h2o": "Decay 0.2",
    "decay-halves-the-pruning-loss": "Decay 0.2",
    "decay-h2o-needs-recent-window": "plain sum (alpha 1)",
    "decay-needs-no-recent-window": "Decay 0.2, half recent",
    "decay-past-helps-beyond-last-row": "Decay 0",
}
"""The policy beside H2O whose mean decides a claim at the published budget."""
_SHOTS = "decay-h2o-nearly-lossless-long-prompts"
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
    """Return the means of the policies beside the published ones, then Decay and H2O by set, and by condition."""
    if rows["source"].eq("published").any():
        return {}
    main = pruning.first_model_rows(rows)
    budgets = main.loc[main["policy"] != "full", "budget"]
    at_budget = main[main["budget"].eq(budgets.iloc[0]) | main["policy"].eq("full")]
    means = at_budget[at_budget["set"].eq(_MEAN) & ~at_budget["configuration"].str.match(_OTHER_ALPHAS)]
    size = means.loc[means["configuration"] == "H2O", "realised_budget"].max()
    means = means[means["realised_budget"].div(size).sub(1).abs().lt(0.01) | means["policy"].eq("full")]
    means = means.sort_values("accuracy", ascending=False)
    shown = means[["configuration", *expand_columns("accuracy minus_h2o[]"), "verdict"]]
    shown = shown.assign(is_reference=shown["configuration"].eq("H2O"))
    published, names = _published_suites().dropna(subset="configuration"), dict[str, str]()
    for model, of_model in published.query("set == @_MEAN").groupby("run", sort=False):
        level = of_model.set_index("configuration")["minus_h2o"].replace(0.0, np.nan)
        names[str(model)] = f"{str(model).removesuffix('-chat')} minus H2O, published"
        shown.insert(
            shown.columns.get_loc("verdict"),
            names[str(model)],
            100 * shown["configuration"].map(level),
        )
    sets = at_budget[at_budget["policy"].eq("full") & at_budget["set"].ne(_MEAN)]
    article = sets[sets["set"].isin([*map(task_label, SUITES)])] if len(sets) else sets
    heading = f"{model_label(str(main['run'].iloc[0]))}, cache of {pruning.budget_text(budgets.iloc[0])}"
    total = f"{means['questions'].max():,.0f} questions, chance {100 * article['chance'].mean():.1f} %"
    by_set, other = _compared(at_budget, rows)
    for model, of_model in published[published["configuration"].eq("Decay 0.2")].groupby("run", sort=False):
        level = of_model.set_index("set")["minus_h2o"]
        by_set[names[str(model)]] = 100 * by_set["set"].map(level)
    blocks = {f"{heading}, mean of the sets; {total}": shown, "Decay 0.2 and H2O, set by set": by_set}
    return blocks | ({"Decay 0.2 and H2O, other budgets, prompts and precision": other} if len(other) else {})


def _compared(main: DataFrame, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the accuracies of Full, H2O and Decay: by set in the main run, and the means under other conditions."""
    article = {_MEAN, *map(task_label, SUITES)}
    outside = ~main["set"].isin(article) & (article <= {*main["set"]})
    main = main.assign(set=main["set"].mask(outside, main["set"] + " (not in the mean)"))
    conditions = []
    for prefix, words in _CONDITIONS.items():
        means = rows[rows["run"].str.startswith(prefix) & rows["set"].eq(_MEAN)]
        names = means["budget"].map(pruning.budget_text).map(words.format)
        conditions.append(means.assign(set=names))
    first, other = _side_by_side(main), _side_by_side(pd.concat(conditions, ignore_index=True))
    first = first.sort_values("set", key=lambda names: names != _MEAN, kind="stable")
    return first, other.rename(columns={"set": "condition"}).drop(columns="chance")


def _side_by_side(rows: DataFrame) -> DataFrame:
    """Return a row per run and set with the accuracies of Full, H2O and Decay in their published settings."""
    published = is_published_setting(rows)
    table = rows[published & rows["policy"].eq("decay")].rename(
        columns={"accuracy": "decay"}
        | dict(zip(*map(expand_columns, ("minus_h2o[]", "decay_minus_h2o[]")), strict=True))
    )
    h2o = rows[published & rows["policy"].eq("h2o")].set_index(["run", "set"])["accuracy"].rename("h2o")
    full = rows[rows["policy"].eq("full")].set_index(["run", "task"])["accuracy"].rename("full")
    table = table.join(h2o, on=["run", "set"]).join(full, on=["run", "task"])
    return table[["set", "questions", "chance", "full", "h2o", "decay", *expand_columns("decay_minus_h2o[]")]]


def _answer_suites(rows: DataFrame) -> str:
    claimed = rows[rows["verdict"].notna() & rows["configuration"].eq("Decay 0.2")]
    if claimed.empty:
        return ""
    row = claimed.iloc[0]
    return (
        f"{row['configuration']} minus H2O: {in_words(row, 'minus_h2o')} points over {row['questions']:,.0f} questions"
        f"{with_verdict(row)}."
    )


@table(reads="prune_questions.csv", published=_published_suites, readers=_policies_then_sets, answer=_answer_suites,
       columns="source run configuration policy -alpha -recent budget realised_budget task set accuracy[] minus_full[] "
               "minus_h2o[] chance questions seeds verdict")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Does Decay answer more questions than H2O?

    - Accuracy minus H2O, after Fig. 4a and Table 2 of the Decay article. Its prompts differ; LLaMA's alpha is unknown.
    The mean weights five sets equally; with five examples, COPA replaces ARC.
    - Brackets: 95 % interval over questions, for this one model.
    - Doubt: sets on which Full is at chance show nothing; caches of other sizes are in the CSV.
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
    table = table.rename(columns={"low": "accuracy_low", "high": "accuracy_high"})
    itself = table["policy"].eq("full"), table["policy"].eq("h2o") & is_published_setting(table)
    for name, is_base in zip(("minus_full", "minus_h2o"), itself, strict=True):
        table.loc[is_base, expand_columns(f"{name}[]")] = np.nan
    is_mean = table["task"].str.startswith(questions.MEAN_LABEL)
    sets = table["task"].map(task_label).str.removesuffix(" (local)").mask(is_mean, _MEAN)
    table = table.assign(set=sets, chance=table["task"].map(chance))
    at_budget = is_mean & table["budget"].eq(_BUDGET)
    masks = {claim: at_budget & table["configuration"].eq(policy) for claim, policy in _CLAIMS.items()}
    return with_verdicts(table, results, STUDY, masks | {_SHOTS: is_mean & table["policy"].eq("h2o")})


LARGEST_ALPHA = 0.9
"""Largest alpha of the claim on the best alpha of a task."""


def _answer_tasks(rows: DataFrame) -> str:
    row = first_row(rows, task=_MEAN)
    return (
        f"Own alphas minus one common alpha: {in_words(row, 'gain')} points{with_verdict(row)}."
        if row is not None
        else ""
    )


@table(reads="prune_questions.csv", readers=pruning.by_model, answer=_answer_tasks,
       columns="source run budget task chance own~alphas -common~alphas acc_own acc_common acc_decay acc_h2o gain[] "
               "-questions verdict")  # fmt: skip
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task?

    - Accuracy of Decay with an alpha for each set and with one alpha for all, chosen on one half of the questions and
    evaluated on the other.
    - Brackets: 95 % interval over questions; for the mean, alpha is chosen again in every resample.
    - Doubt: halves often disagree on the best alpha, so the choice is mostly noise.
    """
    answers = load_answers(results, STUDY, runs)
    fixed = answers[is_published_setting(answers)].groupby(["run", "budget", "policy", "task"])["value"].mean()
    rows = answers
    rows = rows[(rows["policy"] == "decay") & (rows["recent"] == 0) & (rows["alpha"] <= LARGEST_ALPHA)]
    table, chance = [], questions.chance_accuracy(rows)
    compared = claim_verdicts(results, STUDY, claim := "decay-best-alpha-depends-on-task")[claim]
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
            own_answers, common_answers = (chosen_answers(grid, name[task], halves[task]) for name in (own, common))
            row |= estimate("gain", over_examples(own_answers - common_answers))
            row |= {f"acc_{policy}": fixed.get((run, budget, policy, task)) for policy in ("decay", "h2o")}
            by_task.append(row | {"questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = estimate("gain", (by_own - by_common).interval(CONFIDENCE)) | {"task": _MEAN}
        means = DataFrame(by_task)[["acc_own", "acc_common", "acc_decay", "acc_h2o"]].astype(float).mean()
        mean |= means.to_dict() | {"verdict": compared.word if run in compared.runs else None}
        table += [{"run": run, "budget": budget} | row for row in (*by_task, mean)]
    return DataFrame(table)
