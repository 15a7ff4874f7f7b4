"""Rows of tables as readers see them: blocks by data set, and values side by side."""

from collections.abc import Iterable

import pandas as pd
from pandas import DataFrame, Series

from formerlab.report.catalogue import expand_columns


def by_regime(rows: DataFrame) -> DataFrame | dict[str, DataFrame]:
    """Return our rows in a block per data set and learning rate schedule, each with the baselines of its data set.

    The regime of a baseline is its data set alone. Published rows have no regime and stay as they are.
    """
    if "regime" not in rows or rows["source"].eq("published").any():
        return rows
    regimes = rows["regime"].astype(str)
    trained = regimes[regimes.str.contains("learning rate")].unique()
    shown = {name: [name == text or name.startswith(f"{text},") for text in regimes] for name in trained}
    return {name: rows[mask].drop(columns="regime") for name, mask in shown.items()} or rows


def side_by_side(rows: DataFrame, index: str, labels: Series, value: str, among: Iterable[str] = ()) -> DataFrame:
    """Return a row per value of `index`, with `value` and the ends of its interval in columns named by `labels`.

    `among` gives the order of the columns; by default the order of the rows.
    """
    table = DataFrame({index: rows[index].unique()})
    for label in among or labels.unique():
        ends = dict(zip(expand_columns(f"{value}[]"), expand_columns(f"{label.replace(' ', '~')}[]"), strict=True))
        block = rows.loc[labels == label, [index, *ends]].rename(columns=ends)
        table = pd.merge(table, block, on=index, how="left")
    return table
