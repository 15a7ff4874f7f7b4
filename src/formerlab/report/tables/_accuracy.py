"""Accuracies of questions: a column per task and metric."""

from collections.abc import Sequence

import pandas as pd
from pandas import DataFrame

from formerlab.statistics import standard_error

CHANCE = "chance"


def accuracies(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
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
            grid = block.pivot_table("value", "seed", "example").dropna(axis=1).to_numpy()
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
