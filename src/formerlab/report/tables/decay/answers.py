"""Tables of the accuracy on questions with pruned caches."""

import re
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.claims.quantity import Examples
from formerlab.report.columns import verdict_words
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import pruning, questions
from formerlab.report.studies.pruning import CONFIGURATION, is_published_setting, model_label
from formerlab.report.studies.questions import LOCAL_SUFFIX, SUITES, accuracies, load_answers, task_label
from formerlab.report.studies.two_fold import choose_alphas, chosen_answers, half_indices, split_halves
from formerlab.report.tables.cells import claim_verdicts, first_row, in_words, needed_words, negated, verdict_cell
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE, over_examples

STUDY = "decay"
_CONDITIONS = {
    "budgets-": "smaller cache",
    "leading-": "after an end-of-text token",
    "shots-": "after five examples; COPA, OpenBookQA, PIQA, WinoGrande",
    "float32-": "computed in float32",
}
"""Condition of the questions by prefix of the name of a run."""
_NAMED = (*SUITES, "copa", "sciq", "blimp")
"""Sets with a published name. If a run has any of these sets, its other sets are omitted."""
_MEAN = "mean"
_POLICIES = {"Full": "Full", "H2O 20+20": "H2O", "Decay 0+40": "Decay 0.2"}
_CLAIMS = {
    "decay-beats-h2o": "Decay 0.2 minus H2O",
    "decay-halves-the-pruning-loss": "lost by Decay 0.2, minus half of lost by H2O",
    "decay-past-helps-beyond-last-row": "Decay 0.2 minus Decay 0",
    "decay-small-alpha-better": "Decay 0.1 to 0.3 minus Decay 0.7 to 0.9",
    "decay-h2o-needs-recent-window": "H2O minus plain sum (alpha 1)",
    "decay-needs-no-recent-window": "Decay 0.2, half recent, minus Decay 0.2, minus a quarter of lost by H2O",
    "decay-h2o-nearly-lossless-long-prompts": "lost by H2O, minus a tenth of lost by Local (20 %, five examples)",
}
"""The quantities of the claims on the mean accuracy of several sets, in the names of the policies."""
_CLAIM = "claim"
_SHOWN = r"Full|H2O|Decay (0|0\.[123789])|Decay [\d.]+, half recent|plain sum.*|Local"
"""Matches the policies that the table for readers shows; it always shows the most accurate setting of Decay."""


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


def _claims_policies_sets(rows: DataFrame) -> dict[str, DataFrame]:
    """Return the claims, the mean accuracy of each policy, and Decay and H2O by set and under other conditions."""
    if rows["source"].eq("published").any():
        return {}
    claims, rows = rows[rows["set"].eq(_CLAIM)], rows[rows["set"].ne(_CLAIM)]
    main = pruning.first_model_rows(rows)
    budgets = main.loc[main["policy"] != "full", "budget"]
    main = main[main["budget"].eq(budgets.iloc[0]) | main["policy"].eq("full")]
    means = main[main["set"].eq(_MEAN)]
    best = means["accuracy"].eq(means.loc[means["policy"].eq("decay"), "accuracy"].max())
    means = means[best | means["configuration"].str.fullmatch(_SHOWN)].assign(
        is_reference=means["configuration"].eq("H2O"),
        first=means["configuration"].map({"Full": 0, "H2O": 1}).fillna(2),
    ).sort_values(["first", "accuracy"], ascending=[True, False])  # fmt: skip
    size = means.loc[means["configuration"] == "H2O", "realised_budget"].max()
    heading = f"{model_label(str(main['run'].iloc[0]))}; planned cache of {pruning.budget_text(budgets.iloc[0])}"
    heading += f", measured {100 * size:.1f} %; {means['questions'].max():,.0f} questions"
    tested = claims.rename(columns={"configuration": "difference of accuracies"})
    printed = "published_points"
    blocks = {
        f"differences that the claims test, mean of five sets\n{heading}": tested[
            ["difference of accuracies", printed, *expand_columns("tested[]"), "needed", "verdict"]
        ],
        "mean of five sets": means[["configuration", *expand_columns("accuracy minus_h2o[]"), "is_reference"]],
        "Decay 0.2 and H2O, set by set": _by_set(main),
        "Decay 0.2 and H2O under other conditions": _by_condition(rows),
    }
    return {name: block for name, block in blocks.items() if len(block)}


def _by_set(rows: DataFrame) -> DataFrame:
    """Return a row per set, with the published differences. The row of the mean has the mean chance accuracy of its
    sets.
    """
    article, outside = [*map(task_label, SUITES)], " (not in the mean)"
    table = _side_by_side(rows)
    averaged = table["set"].isin(article) if {*article} <= {*table["set"]} else table["set"].ne(_MEAN)
    table["chance"] = table["chance"].mask(table["set"].eq(_MEAN), table.loc[averaged, "chance"].mean())
    published = _published_suites().query("configuration == 'Decay 0.2'")
    for model, of_model in published.groupby("run", sort=False):
        gains = table["set"].map(of_model.set_index("set")["minus_h2o"])
        table[f"published, {model} (points) ↑"] = 100 * gains
    is_mean = table["set"].eq(_MEAN)
    table["set"] += (~averaged & ~is_mean).map({True: outside, False: ""})
    table["set"] += (table["full_low"].le(table["chance"]) & ~is_mean).map(
        {True: " (Full not above chance)", False: ""}
    )
    table = table.drop(columns=["budget", "questions", "realised_budget", *expand_columns("full[] local_loses[]")[1:]])
    return table.sort_values("set", key=lambda names: names != _MEAN, kind="stable")


def _by_condition(rows: DataFrame) -> DataFrame:
    """Return a row for the mean of the sets for every further condition (budget, prompt or precision)."""
    conditions = [rows[:0]]
    for prefix, words in _CONDITIONS.items():
        means = rows[rows["run"].str.startswith(prefix) & rows["set"].eq(_MEAN)]
        conditions.append(means.assign(set=words))
    table = _side_by_side(pd.concat(conditions, ignore_index=True))
    return table.drop(columns=["chance", "full_low", "full_high"]).rename(columns={"set": "condition"})


def _side_by_side(rows: DataFrame) -> DataFrame:
    """Return a row per run and set, at the published settings: the accuracy of Full, the accuracy that H2O loses, and
    Decay minus H2O.
    """
    published = rows[is_published_setting(rows)]
    renamed = dict(zip(*map(expand_columns, ("minus_h2o[]", "decay_minus_h2o[]")), strict=True))
    table = published[published["policy"].eq("decay")].rename(columns=renamed)
    keys = ["run", "set", "budget"]
    for policy, name in (("h2o", "h2o_loses"), ("local", "local_loses")):
        of_policy = (published if policy == "h2o" else rows).query("policy == @policy")
        lost = negated(of_policy, "minus_full", name).set_index(keys)[expand_columns(f"{name}[]")]
        table = table.join(lost, on=keys)
    full = rows[rows["policy"].eq("full")].set_index(["run", "task"])[expand_columns("accuracy[]")]
    table = table.join(full.set_axis(expand_columns("full[]"), axis=1), on=["run", "task"])
    columns = "set budget questions realised_budget chance full[] h2o_loses[] local_loses[] decay_minus_h2o[]"
    return table[expand_columns(columns)]


def _answer_suites(rows: DataFrame) -> str:
    row, claim = first_row(rows, set=_MEAN, configuration="Decay 0.2"), first_row(rows, set=_CLAIM)
    if row is None or claim is None:
        return ""
    verdict = verdict_words(claim["verdict"])
    difference = f"{in_words(row, 'minus_h2o')} points over {row['questions']:,.0f} questions"
    means = rows[rows["run"].eq(row["run"]) & rows["set"].eq(_MEAN) & rows["policy"].eq("decay")]
    best = means.sort_values("accuracy").iloc[-1]
    words = f"{verdict[0].upper()}{verdict[1:]}: Decay 0.2 minus H2O is {difference}"
    return f"{words}; for {best['configuration']}, chosen afterwards, {in_words(best, 'minus_h2o')} points."


@table(reads="prune_questions.csv", published=_published_suites, readers=_claims_policies_sets, answer=_answer_suites,
       columns="source run configuration policy -alpha -recent budget realised_budget task set accuracy[] minus_full[] "
               "minus_h2o[] chance questions seeds tested[] published_points needed verdict")  # fmt: skip
def decay_suites_table(results: Results, runs: list[str]) -> DataFrame:
    """Does Decay answer more questions than H2O?

    - After Fig. 4a and Table 2 of Jo and Shin (2024; arXiv:2407.20485), whose prompts differ. Means are over five
    sets: ARC-c, ARC-e, OpenBookQA, PIQA, WinoGrande.
    - Brackets: 95 % interval over questions, for this one model.
    - Doubt: three sets are not above chance. H2O that ranks by later queries is in the CSV alone.
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
            cells = of_run[full | of_run["budget"].eq(budget)]
            averaged = cells[cells["task"].str.removesuffix(LOCAL_SUFFIX).isin(suites)]
            sizes = averaged.groupby(CONFIGURATION, dropna=False)["realised_budget"].mean().rename("size").reset_index()
            part = accuracies(cells, ("full", "h2o"), (suites,)).merge(sizes, "left", CONFIGURATION)
            is_mean = part["task"].str.startswith(questions.MEAN_LABEL)
            tables.append(part.assign(realised_budget=part["realised_budget"].mask(is_mean, part["size"])))
    table = pd.concat(tables, ignore_index=True).drop_duplicates([*CONFIGURATION, "task"])
    table = table.rename(columns=lambda name: name.replace("difference", "minus_full"))
    table = table.rename(columns={"low": "accuracy_low", "high": "accuracy_high"})
    itself = table["policy"].eq("full"), table["policy"].eq("h2o") & is_published_setting(table)
    for name, is_base in zip(("minus_full", "minus_h2o"), itself, strict=True):
        table.loc[is_base, expand_columns(f"{name}[]")] = np.nan
    is_mean = table["task"].str.startswith("mean of ")
    sets = table["task"].map(task_label).str.removesuffix(" (local)").mask(is_mean, _MEAN)
    table = table.assign(set=sets, chance=table["task"].map(chance))
    tested = []
    for claim, verdict in claim_verdicts(results, STUDY, *_CLAIMS).items():
        if verdict.interval is not None and verdict.runs & {*table["run"]}:
            printed = re.search(r"published (-?[\d.]+)", verdict.quantity)
            row: dict[str, Any] = {"run": min(verdict.runs), "set": _CLAIM, "configuration": _CLAIMS[claim]}
            row |= {"needed": needed_words(verdict), "published_points": float(printed[1]) if printed else np.nan}
            tested.append(row | estimate("tested", verdict.interval) | {"verdict": verdict_cell(claim, verdict)})
    return pd.concat([table, DataFrame(tested)], ignore_index=True)


LARGEST_ALPHA = 0.9
"""Largest alpha of the claim on the best alpha of a task."""


def _accuracy_by_alpha_choice(rows: DataFrame) -> dict[str, DataFrame]:
    """Return a row per set with three accuracies: Decay with the set's own alphas, Decay with the common alphas, and
    H2O. The last row has the means.
    """
    rows = pruning.first_model_rows(rows)
    rows = rows[rows["budget"] == rows["budget"].iloc[0]]
    settings = (
        f"{model_label(str(rows['run'].iloc[0]))}, cache of {pruning.budget_text(rows['budget'].iloc[0])}; common "
    )
    settings += f"alphas of the halves: {rows['common alphas'].dropna().iloc[0]}"
    tasks = rows["task"] + (100 * rows["chance"]).map(" (chance {:.0f} %)".format, na_action="ignore").fillna("")
    alphas = rows["own alphas"].replace({r"^([\d.]+)$": r"\1, \1"}, regex=True)
    columns = ["task", "questions_of_set", "own alphas", *expand_columns("acc_own acc_common acc_decay acc_h2o gain[]")]
    reader_rows = rows.assign(**{"task": tasks, "own alphas": alphas}, questions_of_set=rows["questions"])
    return {f"accuracy by choice of alpha\n{settings}": reader_rows[[*columns, "verdict"]]}


def _answer_tasks(rows: DataFrame) -> str:
    row = first_row(rows, task=_MEAN)
    if row is None:
        return ""
    verdict = verdict_words(row["verdict"]) or "not tested"
    difference = f"own alphas minus one common alpha is {in_words(row, 'gain')} points"
    return f"{verdict[0].upper()}{verdict[1:]}: {difference}."


@table(reads="prune_questions.csv", readers=_accuracy_by_alpha_choice, answer=_answer_tasks,
       columns="source run budget task chance own~alphas -common~alphas acc_own acc_common acc_decay acc_h2o gain[] "
               "-questions verdict")  # fmt: skip
def decay_tasks_table(results: Results, runs: list[str]) -> DataFrame:
    """Does it pay to choose alpha per task?

    - Accuracy of Decay with an alpha for each set and with one alpha for all: of ten, the best on one half of the
    questions is evaluated on the other. Own alphas: of both halves.
    - Brackets: 95 % interval over questions; for the mean, resamples choose alpha again.
    - Doubt: three sets are not above chance; halves often disagree on alpha.
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
        choices = {name: choose_alphas(grids, halves, common=name == "common") for name in ("own", "common")}
        by_task = []
        for task, grid in grids.items():
            row: dict[str, Any] = {"task": task_label(task).removesuffix(" (local)"), "chance": chance.get(task)}
            answers_by_choice = {name: chosen_answers(grid, choices[name][task], halves[task]) for name in choices}
            for name, chosen in choices.items():
                shown_alphas = {f"{alpha:g}" for alpha in alphas["alpha"][chosen[task].ravel()]}
                row[f"{name} alphas"] = ", ".join(sorted(shown_alphas))
                row[f"acc_{name}"] = answers_by_choice[name].mean()
            row |= estimate("gain", over_examples(answers_by_choice["own"] - answers_by_choice["common"]))
            row |= {f"acc_{policy}": fixed.get((run, budget, policy, task)) for policy in ("decay", "h2o")}
            by_task.append(row | {"questions": grid.shape[2]})
        sides = split_halves({task: np.moveaxis(grid, 0, -1) for task, grid in grids.items()}, halves)
        seeds = tuple(range(len(sides[0])))
        by_own, by_common = (Examples(sides, seeds, {}, chosen=chosen).estimate() for chosen in ("own", "common"))
        mean = estimate("gain", (by_own - by_common).interval(CONFIDENCE)) | {"task": _MEAN}
        means = DataFrame(by_task)[["acc_own", "acc_common", "acc_decay", "acc_h2o"]].astype(float).mean()
        mean |= means.to_dict() | {"verdict": verdict_cell(claim, compared) if run in compared.runs else None}
        table += [{"run": run, "budget": budget} | row for row in (*by_task, mean)]
    return DataFrame(table)
