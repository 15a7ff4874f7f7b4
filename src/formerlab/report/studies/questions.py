"""Accuracy on questions with pruned caches, for figures and tables: metrics of tasks and paired differences."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.studies.pruning import CONFIGURATION, label_and_sort
from formerlab.results.read import Results
from formerlab.statistics import Interval, bootstrap_means, interval_over, mean_ends, standard_error

SUITES = ("openbookqa", "winogrande", "arc_easy", "arc_challenge", "piqa")
"""The suites of the Decay article, scored by the summed log-probability (acc)."""
COSTLY = ("arc_easy", "sciq", "blimp")
"""Sets on which H2O clearly loses accuracy; they were singled out after the result."""
CHANCE = "chance"
LOCAL_SUFFIX = "_local"
MEAN_LABEL = "mean of the five suites"

Grid = NDArray[np.float64]
"""Configurations x seeds x examples."""


def load_answers(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the answers of all runs by the main metric of their task.

    The embedded questions use acc_mutual_info, since small models are at chance by plain accuracy. HellaSwag uses
    acc_norm (log-probability per character).
    """
    rows = results.rows("prune_questions.csv", study, runs)
    exceptions = {"embedded": "acc_mutual_info", "hellaswag": "acc_norm"}
    metrics = {
        task: exceptions.get(task.split("_")[0], "acc") for task in rows["task"].unique()
    }  # one look-up per task is faster than one per row
    return rows[rows["metric"] == rows["task"].map(metrics)]


def answer_grids(rows: DataFrame) -> tuple[DataFrame, dict[str, Grid], dict[str, list[str]]]:
    """Return the configurations of a run (one per row), their answers by task, and the names of the examples by task.

    Only examples that every configuration and seed answered are used, so all comparisons are paired.
    """
    configurations = rows[CONFIGURATION].drop_duplicates().reset_index(drop=True)
    numbered = rows.merge(configurations.assign(number=range(len(configurations))), on=CONFIGURATION)
    grids, names = {}, {}
    for task, block in numbered.groupby("task", sort=False):
        table = block.pivot_table("value", ["number", "seed"], "example").dropna(axis=1).sort_index()
        seeds = table.index.get_level_values("seed").nunique()
        if len(table) == len(configurations) * seeds and table.shape[1]:
            grids[str(task)] = table.to_numpy().reshape(len(configurations), seeds, -1)
            names[str(task)] = [*map(str, table.columns)]
    return configurations, grids, names


def mean_label(suites: Sequence[str]) -> str:
    """Return the name of the mean of the suites."""
    return MEAN_LABEL if suites == SUITES else f"mean of {', '.join(map(task_label, suites))}"


def _with_means(
    values: dict[str, Any], averaged: Sequence[Sequence[str]], reduce: Callable[..., Any] = np.mean
) -> dict[str, Any]:
    """Add `reduce` (default: the unweighted mean) over the local and over the official suites of each group in
    `averaged`, if all are present.
    """
    for suites in averaged:
        for suffix, ending in ((LOCAL_SUFFIX, " (local)"), ("", "")):
            names = [f"{suite}{suffix}" for suite in suites]
            if all(name in values for name in names):
                values = values | {f"{mean_label(suites)}{ending}": reduce([values[name] for name in names], axis=0)}
    return values


RESAMPLES = 2_000
"""Resamples per interval. The ends have a Monte Carlo error of at most a tenth of the width of the interval."""


DIFFERENCES = {"full": "difference", "h2o": "minus_h2o"}
"""Column of the accuracy difference to each baseline policy."""


class ResampledMeans(NamedTuple):
    """Accuracies of several configurations on one task, with bootstrap replicates that share their questions."""

    by_seed: Float[np.ndarray, "configurations seeds"]
    replicates: Float[np.ndarray, "resamples configurations"]
    questions: int

    def contrast(self, weights: Float[np.ndarray, " configurations"]) -> Interval:
        """Return the weighted sum over configurations with its 95 % interval."""
        return interval_over(weights @ self.by_seed, self.replicates @ weights, self.questions)


def resampled_accuracies(
    rows: DataFrame, averaged: Sequence[Sequence[str]] = (SUITES,)
) -> tuple[DataFrame, dict[str, ResampledMeans]]:
    """Return the configurations of a run (one per row), and their accuracies by task and for the mean of each group of
    suites in `averaged` whose suites are all present.
    """
    configurations, grids, _ = answer_grids(rows)
    replicates_by_task = {
        task: bootstrap_means(grid, resamples=RESAMPLES, random_seed=index)
        for index, (task, grid) in enumerate(grids.items())
    }
    means = _with_means({task: grid.mean(axis=2) for task, grid in grids.items()}, averaged)
    sizes = _with_means({task: grid.shape[2] for task, grid in grids.items()}, averaged, np.sum)
    replicates = _with_means(replicates_by_task, averaged)
    return configurations, {task: ResampledMeans(means[task], replicates[task], sizes[task]) for task in means}


def accuracies(
    rows: DataFrame, against: Sequence[str] = ("full",), averaged: Sequence[Sequence[str]] = (SUITES,)
) -> DataFrame:
    """Return a row per run, configuration and task: `accuracy` and paired differences, with their 95 % intervals.

    `difference` is the accuracy minus the accuracy of the full cache on the same questions of the same models, and
    `minus_h2o` is the accuracy minus the accuracy of H2O; `against` lists keys of `DIFFERENCES`. Further tasks are
    the means of the groups of suites in `averaged` whose suites are all present. Intervals are over questions and seeds
    (`statistics.mean_ends`): `low` and `high` are the ends for `accuracy`, and `<name>_low` and `<name>_high` are the
    ends for a difference. The difference to a policy without rows is empty.
    """
    tables = []
    for run, of_run in rows.groupby("run", sort=False):
        configurations, means_by_task = resampled_accuracies(of_run, averaged)
        budgets = of_run.groupby(CONFIGURATION, dropna=False)["realised_budget"].mean().reset_index()
        half = configurations["recent"].fillna(0.5).eq(0.5)  # H2O with half of the budget recent, as in the papers
        for task, (by_seed, replicates, size) in means_by_task.items():
            low, high = mean_ends(by_seed, replicates, size)
            table = configurations.assign(task=task, accuracy=by_seed.mean(axis=1), low=low, high=high)
            for policy in against:
                is_base = configurations["policy"].eq(policy) & half
                base = [int(is_base.argmax())]
                gains = by_seed - by_seed[base]
                cells = gains.mean(axis=1), *mean_ends(gains, replicates - replicates[:, base], size)
                for end, values in zip(("", "_low", "_high"), cells, strict=True):
                    table[f"{DIFFERENCES[policy]}{end}"] = values if is_base.any() else np.nan
            table = table.assign(questions=size, seeds=of_run["seed"].nunique(), run=run)
            tables.append(table.merge(budgets, on=CONFIGURATION))
    if not tables:
        return DataFrame(columns=["source", *CONFIGURATION, "task", "accuracy"])
    return label_and_sort(pd.concat(tables, ignore_index=True)).assign(source="ours")


def chance_accuracy(rows: DataFrame) -> dict[str, float]:
    """Return the accuracy of a uniform guess by task, for tasks whose number of choices is known."""
    if "choices" not in rows:
        return {}
    rows = rows[rows["choices"].notna()]
    return {str(task): float(value) for task, value in (1 / rows["choices"]).groupby(rows["task"]).mean().items()}


def task_label(task: str) -> str:
    """Return the label of a task."""
    names = {
        "openbookqa": "OpenBookQA",
        "winogrande": "WinoGrande",
        "arc_easy": "ARC-e",
        "arc_challenge": "ARC-c",
        "piqa": "PIQA",
        "hellaswag": "HellaSwag",
        "copa": "COPA",
        "lambada": "LAMBADA",
        "blimp": "BLiMP",
        "sciq": "SciQ",
    }
    name = task.removesuffix(LOCAL_SUFFIX)
    return names.get(name, name.removeprefix("embedded_").replace("_", " ")) + (" (local)" if name != task else "")


def accuracy_columns(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return a row per combination of `keys`, with columns `<task> (<metric>)` and standard errors `..._se`.

    `seeds` and `questions` count the seeds and questions of the row. If the rows have `choices`, a last row has the
    accuracy of a uniform guess.
    """
    table = []
    for values, group in rows.groupby([*keys], sort=False, dropna=False):
        row: dict[str, Any] = dict(zip(keys, values, strict=True)) | {"seeds": group["seed"].nunique()}
        row["questions"] = len(group[["task", "example"]].drop_duplicates())
        for (task, metric), block in group.groupby(["task", "metric"], sort=True):
            grid = block.pivot(index="seed", columns="example", values="value").dropna(axis=1).to_numpy()
            row |= {f"{task} ({metric})": grid.mean(), f"{task} ({metric})_se": float(standard_error(grid))}
        table.append(row)
    if "choices" in rows:
        guesses = (1 / rows["choices"]).groupby([rows["task"], rows["metric"]]).mean().reset_index().to_numpy()
        table.append({keys[0]: CHANCE} | {f"{task} ({metric})": accuracy for task, metric, accuracy in guesses})
    return DataFrame(table)
