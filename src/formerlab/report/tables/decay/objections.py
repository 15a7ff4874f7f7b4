"""Table of the fraction of H2O's lost accuracy that Decay wins back, by scoring and group of sets, and for other alphas
and H2O variants.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from pandas import DataFrame

from formerlab.report.catalogue import expand_columns, table
from formerlab.report.published import DECAY, published_rows
from formerlab.report.runs import estimate
from formerlab.report.studies import pruning, questions
from formerlab.report.studies.policy_comparison import labelled
from formerlab.report.studies.pruning import configuration_label
from formerlab.report.studies.questions import COSTLY, LOCAL_SUFFIX, SUITES, ResampledMeans, task_label
from formerlab.report.tables.cells import in_words, with_verdicts
from formerlab.results.read import Results
from formerlab.statistics import CONFIDENCE

STUDY = "decay"
_SCORINGS = {
    "acc": "total probability",
    "acc_norm": "probability per character",
    "acc_mutual_info": "mutual information",
}
_PUBLISHED = "the article's five sets"
_REGISTERED, _SMALLER = "as registered", " ({:.1f} % of the cache)"


def _published() -> DataFrame:
    """Return the published accuracy that H2O loses and Decay wins back, for the mean of the sets of each model."""
    means = published_rows(DECAY, "Fig 4a", "Table 2", by=("model", "setting")).set_index("model")["average"] / 100
    rows = []
    for model in "OPT-2.7B", "LLaMA-2-7B-chat":
        full, h2o, decay = (
            float(means[means.index.str.startswith(f"{model} {policy}")].iloc[0]) for policy in ("Full", "H2O", "Decay")
        )
        row = {"model": model, "set": f"{_PUBLISHED}, {model}", "scoring": _SCORINGS["acc"]}
        contrasts = {"h2o_loses": full - h2o, "decay_minus_h2o": decay - h2o}
        rows.append(row | contrasts | {"fraction_won_back": (decay - h2o) / (full - h2o)})
    return DataFrame(rows)


def _label(task: str) -> str:
    return task_label(task.removesuffix(LOCAL_SUFFIX))


def _groups(above_chance: Mapping[str, bool]) -> dict[str, list[str]]:
    """Return, by the name of each mean, the tasks that it averages. `above_chance` says for every task whether the full
    cache is above chance.

    The means are over the article's sets (or all sets if the article's are missing), over its sets above chance, and
    over COSTLY.
    """
    tasks = {task.removesuffix(LOCAL_SUFFIX): task for task in above_chance}
    of_article = {suite: tasks[suite] for suite in SUITES if suite in tasks}
    missing = ", ".join(_label(suite) for suite in SUITES if suite not in tasks)
    name = f"the article's sets without {missing}" if missing else _PUBLISHED
    groups = {name: [*of_article.values()]} if of_article else {"all sets": [*tasks.values()]}
    above = [task for task in of_article.values() if above_chance[task]]
    if above and len(above) < len(of_article):
        groups[f"of these, above chance: {', '.join(map(_label, above))}"] = above
    if {*COSTLY} <= {*tasks}:
        groups[", ".join(map(_label, COSTLY))] = [tasks[task] for task in COSTLY]
    return groups


def _fraction(
    means: ResampledMeans, gain: Float[np.ndarray, " configurations"], loss: Float[np.ndarray, " configurations"]
) -> dict[Any, Any]:
    """Return the contrast `gain` divided by the contrast `loss`, with its interval; empty if the loss may be zero.

    The resamples are ordered by the angle of (loss, gain). This is the order of the ratios, and stays defined if a
    resample has loss <= 0.
    """
    lost = means.contrast(loss)
    if not lost.low > 0:
        return {}
    angles = np.arctan2(means.replicates @ gain, means.replicates @ loss)
    low, high = np.tan(np.quantile(angles, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    name, fraction = "fraction_won_back", means.contrast(gain).mean / lost.mean
    return {name: fraction, f"{name}_low": low, f"{name}_high": high}


def _compared(rows: DataFrame, decay: str = "Decay 0.2", h2o: str = "H2O") -> list[dict[Any, Any]]:
    """Return a row per task and mean with the contrasts of the full cache, Decay and H2O, paired by question."""
    rows = labelled(rows, ("Full", decay, h2o))
    chance, published = questions.chance_accuracy(rows), _published().set_index("model")["fraction_won_back"]
    configurations, means = questions.resampled_accuracies(rows)
    labels = [configuration_label(*cell) for cell in configurations[["policy", "alpha", "recent"]].to_numpy()]
    if {*labels} != {"Full", decay, h2o}:
        return []
    full, decay_weights, h2o_weights = (np.eye(len(labels))[labels.index(label)] for label in ("Full", decay, h2o))
    tasks = [task for task in means if not task.startswith(questions.MEAN_LABEL)]
    above_chance = {task: means[task].contrast(full).low > chance.get(task, np.nan) for task in tasks}
    table = []
    for name, group in ({_label(task): [task] for task in tasks} | _groups(above_chance)).items():
        of_group = [means[task] for task in group]
        mean = ResampledMeans(
            np.mean([each.by_seed for each in of_group], axis=0),
            np.mean([each.replicates for each in of_group], axis=0),
            sum(each.questions for each in of_group),
        )
        guess = float(np.mean([chance.get(task, np.nan) for task in group]))
        row: dict[Any, Any] = {"set": name, "sets": len(group), "questions": mean.questions, "chance": guess}
        row |= estimate("full", mean.contrast(full)) | estimate("h2o_loses", mean.contrast(full - h2o_weights))
        row |= {f"full_minus_chance{end}": row[f"full{end}"] - guess for end in ("", "_low", "_high")}
        gain, loss = decay_weights - h2o_weights, full - h2o_weights
        row |= estimate("decay_minus_h2o", mean.contrast(gain)) | _fraction(mean, gain, loss)
        for column, model in ("beyond_published", "OPT-2.7B"), ("beyond_llama", "LLaMA-2-7B-chat"):
            row |= estimate(column, mean.contrast(gain - published[model] * loss))
        sizes = rows[rows["task"].isin(group)].groupby("configuration")["realised_budget"].mean()
        table.append(row | {"h2o_size": sizes[h2o], "decay_size": sizes[decay]})
    return table


def _best_alpha(rows: DataFrame) -> float:
    """Return the alpha with the highest mean accuracy on the article's sets, or on all sets if these are missing."""
    (suites, *_) = _groups(dict.fromkeys(rows["task"].unique(), True)).values()
    means = rows[rows["task"].isin(suites)].groupby(["alpha", "task"])["value"].mean().groupby("alpha").mean()
    return float(means.index[int(means.argmax())])


def _means(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return the means over several sets on which H2O clearly loses accuracy, each with the objection that it tests."""
    columns = expand_columns("h2o_loses[] decay_minus_h2o[]")
    if rows["source"].eq("published").any():
        names = rows["set"].str.replace(f"{_PUBLISHED}, ", "")
        return rows.assign(model=names)[["model", *columns, "fraction_won_back"]].dropna(axis=1)
    rows = pruning.first_model_rows(rows)
    rows = rows[rows["sets"] > 1].dropna(subset="fraction_won_back")
    if rows.empty:
        return {}
    objections = rows["condition"].replace(
        {"^alpha": "alpha was not tuned: alpha", "^H2O of": "another H2O:"}, regex=True
    )
    objections += np.where(
        rows["h2o_size"].div(rows["decay_size"]).lt(0.99), (100 * rows["h2o_size"]).map(_SMALLER.format), ""
    )
    other_scoring = rows["condition"].eq(_REGISTERED) & rows["scoring"].ne(_SCORINGS["acc"])
    objections = objections.mask(other_scoring, "another scoring: " + rows["scoring"])
    chosen = rows["condition"].eq(_REGISTERED) & ~rows["set"].str.startswith(("the article's", "all sets"))
    objections = objections.mask(chosen & ~other_scoring, "other sets")
    names = rows["set"].replace({"of these, (.*): (.*)": r"\2 (\1)", _PUBLISHED: "five sets"}, regex=True)
    names = names.str.replace("the article's sets without", "four sets, without")
    published = rows["h2o_loses"] * _published()["fraction_won_back"].iloc[0]
    table = rows.assign(objection=objections, set=names, published_fraction=published)
    settings = f"{pruning.model_label(rows['run'].iloc[0])}, planned cache of 40 %, measured"
    settings += f" {100 * rows['decay_size'].iloc[0]:.1f} %; scored by total probability unless named"
    columns = ["objection", "set", "questions", *columns, "published_fraction", "needed", "verdict"]
    return {f"Decay 0.2 and H2O, by objection\n{settings}": table[columns]}


def _answer(rows: DataFrame) -> str:
    rows = pruning.first_model_rows(rows)
    rows = rows[rows["sets"].gt(1)].dropna(subset="fraction_won_back")
    registered = rows[rows["condition"].eq(_REGISTERED)]
    if registered.empty:
        return ""
    row, paper = registered.iloc[0], _published().iloc[0]
    answer = "No" if row["decay_minus_h2o_high"] <= 0 else "Yes" if row["decay_minus_h2o_low"] > 0 else "Cannot tell"
    words = (
        f"{answer}: Decay 0.2 wins back {in_words(row, 'decay_minus_h2o')} of the {100 * row['h2o_loses']:.1f} points "
    )
    words += "that H2O loses"
    return f"{words} (published: {100 * paper['decay_minus_h2o']:.1f} of {100 * paper['h2o_loses']:.1f} points)."


@table(reads="prune_questions.csv", runs="released-*", needs="released-*", published=_published, readers=_means,
       answer=_answer,
       columns="source run condition scoring set sets questions chance full[] full_minus_chance[] h2o_loses[] "
               "decay_minus_h2o[] fraction_won_back[] beyond_published[] beyond_llama[] h2o_size decay_size "
               "needed verdict"
       )  # fmt: skip
def decay_objections_table(results: Results, runs: list[str]) -> DataFrame:
    """Does Decay win back the accuracy that H2O loses?

    - Accuracies, paired by question; sets have equal weights. Five sets: ARC-c, ARC-e, OpenBookQA, PIQA, WinoGrande.
    Mutual information: relative to the probability without the question. The CSV has single sets.
    - Brackets: 95 % interval over questions, for this model.
    - Doubt: only the first row was registered. ARC-e, SciQ and BLiMP were chosen after the result.
    """
    rows = pruning.nearest_budget_rows(results.rows("prune_questions.csv", STUDY, runs))
    compared_rows: list[dict[str, Any]] = []
    for run, of_run in rows.groupby("run", sort=False):
        for metric, scoring in _SCORINGS.items():
            scored = of_run[of_run["metric"].eq(metric)]
            if scored.empty:
                continue
            conditions = {_REGISTERED: _compared(scored)}
            if metric == "acc":
                alpha = _best_alpha(scored[scored["policy"].eq("decay") & scored["recent"].eq(0)])
                conditions[f"alpha {alpha:g}, the best on these questions"] = _compared(scored, f"Decay {alpha:g}")
                conditions["H2O of the official code for OPT"] = _compared(scored, h2o="H2O (local statistics)")
            compared_rows += [
                {"run": run, "scoring": scoring, "condition": condition} | row
                for condition, compared in conditions.items()
                for row in compared
                if condition == _REGISTERED or row["set"].startswith(("the article's", "all sets"))
            ]
    table = DataFrame(compared_rows)
    if table.empty:
        return table
    registered = (
        table["condition"].eq(_REGISTERED) & table["scoring"].eq(_SCORINGS["acc"]) & table["set"].eq(_PUBLISHED)
    )
    return with_verdicts(table, results, STUDY, {"decay-beats-h2o": registered})
