"""Published results of the papers and of those who repeated them, as printed; drawn beside ours, never mixed in."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import pandas as pd
from pandas import DataFrame

TOKENFORMER = "TokenFormer (2410.23168)"
DENSEFORMER = "DenseFormer (2402.02622)"
TRANSFORMER = "Attention Is All You Need (1706.03762)"
A2SF = "A2SF (2407.20485)"
DECAY = "Accumulated Attention Score Decaying (Jo and Shin 2024)"


@cache
def _all() -> DataFrame:
    with files(__name__).joinpath("published_results.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def published(paper: str, *places: str) -> DataFrame:
    """Return the published values of a paper's tables or figures (`Table 1`, `Fig 3`, ...), or all of them.

    Columns: paper, table_or_figure, model, setting, metric, value, unit, source_kind (table, text, figure-read, ...),
    note.
    """
    rows = _all()
    return rows[(rows["paper"] == paper) & (rows["table_or_figure"].isin(places) | (not places))]


def published_rows(
    paper: str,
    *places: str,
    by: Sequence[str] = ("model",),
    names: Mapping[str, str] | None = None,
    factors: Mapping[str, float] | None = None,
) -> DataFrame:
    """Return published numbers in the order of print: a row per value of `by`, a column per metric.

    `names` are what columns are called instead, `factors` what numbers under these names are multiplied by.
    """
    rows, names = published(paper, *places), dict(names or {})
    rows = rows.assign(value=pd.to_numeric(rows["value"]), metric=rows["metric"].replace(names))
    wide = rows.pivot_table("value", [*by], "metric", sort=False).reset_index()
    wide = wide.rename(columns=names).rename_axis(columns=None)
    return wide.assign(**{name: factor * wide[name] for name, factor in (factors or {}).items() if name in wide})
