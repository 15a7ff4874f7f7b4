"""What figures and tables know of questions answered under pruning: the metric that counts, and paired accuracies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas import DataFrame

from formerlab.report.pruning import CONFIGURATION, ordered
from formerlab.results.read import Results
from formerlab.statistics import bootstrap_means, mean_ends, standard_error

SUITES = ("openbookqa", "winogrande", "arc_easy", "arc_challenge", "piqa")
"""The suites of the Decay article, scored by the summed log-probability (acc)."""
CHANCE = "chance"
LOCAL = "_local"
MEAN = "mean of the five suites"

Grid = NDArray[np.float64]
"""Seeds x examples."""


def metric_of(task: str) -> str:
    """Return the metric by which a task counts.

    Small models are at chance in the plain accuracy of the embedded questions; HellaSwag is reported per character.
    """
    if task.startswith("embedded_"):
        return "acc_mutual_info"
    return "acc_norm" if task.startswith("hellaswag") else "acc"


def counted(rows: DataFrame) -> DataFrame:
    """Return the rows of each task's own metric."""
    metrics = {task: metric_of(task) for task in rows["task"].unique()}  # millions of rows have a dozen tasks
    return rows[rows["metric"] == rows["task"].map(metrics)]


def answers(results: Results, study: str, runs: Sequence[str] = ("*",)) -> DataFrame:
    """Return the answers of all runs by each task's own metric."""
    return counted(results.rows("prune_questions.csv", study, runs))


def grids(rows: DataFrame) -> tuple[DataFrame, dict[str, NDArray[np.float64]]]:
    """Return the configurations of a run, a row each, and by task their answers: configurations x seeds x examples.

    Only examples that every configuration and seed answered count, so that all comparisons are paired.
    """
    configurations = rows[CONFIGURATION].drop_duplicates().reset_index(drop=True)
    keys = configurations.assign(place=range(len(configurations)))
    placed = rows.merge(keys, on=CONFIGURATION)
    found = {}
    for task, block in placed.groupby("task", sort=False):
        table = block.pivot_table("value", ["place", "seed"], "example").dropna(axis=1)
        seeds = table.index.get_level_values("seed").nunique()
        if len(table) == len(configurations) * seeds and table.shape[1]:
            found[str(task)] = table.sort_index().to_numpy().reshape(len(configurations), seeds, -1)
    return configurations, found


def with_mean(replicates: dict[str, Grid]) -> dict[str, Grid]:
    """Add the unweighted mean over the five suites of the article, where all are there (local or official)."""
    for ending, label in ((LOCAL, f"{MEAN} (local)"), ("", MEAN)):
        names = [f"{suite}{ending}" for suite in SUITES]
        if all(name in replicates for name in names):
            replicates = replicates | {label: np.mean([replicates[name] for name in names], axis=0)}
    return replicates


RESAMPLES = 2_000
"""Resamples behind an interval that is drawn or listed, not judged: its ends are known to a tenth of its width."""


def accuracies(rows: DataFrame, against: str = "full", resamples: int = RESAMPLES) -> DataFrame:
    """Return a row per run, configuration and task: `accuracy` with its 95 % interval, and a paired difference.

    `difference`, `difference_low` and `difference_high` are accuracy minus that of the policy `against` on the same
    questions of the same models. Intervals are over questions and seeds (`statistics.mean_ends`). Without rows of
    `against` they are empty.
    """
    tables = []
    for run, mine in rows.groupby("run", sort=False):
        configurations, found = grids(mine)
        base = np.flatnonzero(configurations["policy"] == against)
        each = {
            task: bootstrap_means(grid, resamples=resamples, random_seed=place)
            for place, (task, grid) in enumerate(found.items())
        }
        drawn = with_mean(each)
        means = with_mean({task: grid.mean(axis=2) for task, grid in found.items()})
        budgets = mine.groupby(CONFIGURATION, dropna=False)["realised_budget"].mean().reset_index()
        for task, replicates in drawn.items():
            size = sum(found[name].shape[2] for name in found if task in (name, *_label_of(name)))
            table = configurations.assign(task=task, accuracy=means[task].mean(axis=1))
            table["low"], table["high"] = mean_ends(means[task], replicates, size)
            ends: tuple[Any, ...] = (np.nan, np.nan, np.nan)
            if len(base):
                more = means[task] - means[task][base[0]]
                ends = more.mean(axis=1), *mean_ends(more, replicates - replicates[:, base[:1]], size)
            for name, end in zip(("difference", "difference_low", "difference_high"), ends, strict=True):
                table[name] = end
            tables.append(
                table.assign(questions=size, seeds=mine["seed"].nunique(), run=run).merge(budgets, on=CONFIGURATION)
            )
    if not tables:
        return DataFrame(columns=["source", *CONFIGURATION, "task", "accuracy"])
    return ordered(pd.concat(tables, ignore_index=True)).assign(source="ours")


def _label_of(task: str) -> tuple[str, ...]:
    """Return the label of the mean that a task belongs to, if any."""
    plain = task.removesuffix(LOCAL)
    return ((f"{MEAN} (local)",) if task.endswith(LOCAL) else (MEAN,)) if plain in SUITES else ()


def chance(rows: DataFrame) -> dict[str, float]:
    """Return the accuracy of guessing by task, where the number of choices is known."""
    if "choices" not in rows:
        return {}
    known = rows[rows["choices"].notna()]
    return {str(task): float(value) for task, value in (1 / known["choices"]).groupby(known["task"]).mean().items()}


def title(task: str) -> str:
    """Return what a reader calls a task."""
    names = {
        "openbookqa": "OpenBookQA",
        "winogrande": "WinoGrande",
        "arc_easy": "ARC-e",
        "arc_challenge": "ARC-c",
        "piqa": "PIQA",
        "hellaswag": "HellaSwag",
        "lambada": "LAMBADA",
        "blimp": "BLiMP",
        "sciq": "SciQ",
    }
    plain = task.removesuffix(LOCAL)
    return names.get(plain, plain.removeprefix("embedded_").replace("_", " ")) + (" (local)" if plain != task else "")


def accuracy_columns(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return a row per combination of `keys` with `<task> (<metric>)` and its standard error `..._se`.

    `seeds` and `questions` count what every number of the row rests on. Where the rows say how many `choices` a
    question has, a last row gives the accuracy of guessing.
    """
    table = rows[list(keys)].drop_duplicates().reset_index(drop=True)
    places = {_plain(key): place for place, key in enumerate(table.itertuples(index=False, name=None))}
    for key, group in rows.groupby(list(keys), sort=False, dropna=False):
        columns: dict[str, float] = {
            "seeds": group["seed"].nunique(),
            "questions": len(group[["task", "example"]].drop_duplicates()),
        }
        for (task, metric), block in group.groupby(["task", "metric"], sort=True):
            grid = block.pivot(index="seed", columns="example", values="value").dropna(axis=1).to_numpy()
            name = f"{task} ({metric})"
            columns |= {name: grid.mean(), f"{name}_se": float(standard_error(grid))}
        for name, value in columns.items():
            table.loc[places[_plain(key)], name] = value
    return _with_chance(table, rows, keys)


def _plain(key: object) -> tuple[object, ...]:
    """Return a key that equals itself: NaN, which does not, becomes None."""
    return tuple(None if pd.isna(value) else value for value in (key if isinstance(key, tuple) else (key,)))


def _with_chance(table: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    if "choices" not in rows:
        return table
    chance = (1 / rows["choices"]).groupby([rows["task"], rows["metric"]]).mean()
    names = [f"{task} ({metric})" for task, metric in chance.index]
    return pd.concat([table, DataFrame([{keys[0]: CHANCE} | dict(zip(names, chance, strict=True))])], ignore_index=True)
