"""Published results of the papers and of others who repeated them, as printed. They are shown separately from ours."""

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
def _all_rows() -> DataFrame:
    with files(__name__).joinpath("published_results.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def published(paper: str, *sources: str) -> DataFrame:
    """Return the published values of some tables or figures of a paper (`Table 1`, `Fig 3`, ...); by default of all.

    Columns: paper, table_or_figure, model, setting, metric, value, unit, source_kind (table, text, figure-read, ...),
    note.
    """
    rows = _all_rows()
    return rows[(rows["paper"] == paper) & (rows["table_or_figure"].isin(sources) | (not sources))]


def published_rows(
    paper: str,
    *sources: str,
    by: Sequence[str] = ("model",),
    names: Mapping[str, str] | None = None,
    factors: Mapping[str, float] | None = None,
) -> DataFrame:
    """Return published numbers in the printed order, with a row per value of `by` and a column per metric.

    `names` renames columns, and `factors` multiplies the numbers of renamed columns.
    """
    rows, names = published(paper, *sources), dict(names or {})
    rows = rows.assign(value=pd.to_numeric(rows["value"]), metric=rows["metric"].replace(names))
    wide = rows.pivot_table("value", [*by], "metric", sort=False).reset_index()
    wide = wide.rename(columns=names).rename_axis(columns=None)
    return wide.assign(**{name: factor * wide[name] for name, factor in (factors or {}).items() if name in wide})
