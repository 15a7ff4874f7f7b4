"""Published results of the papers and of replications, as printed. Reports show them separately from our results."""

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
    """Return the published values of some tables or figures of a paper (`Table 1`, `Fig 3`, ...), by default of all its
    tables and figures.

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
    """Return the published numbers of some tables or figures: a row per value of `by`, in the printed order, and a
    column per metric.

    `names` maps metrics and columns to new names, and `factors` maps new names to a factor for their numbers.
    """
    rows, names = published(paper, *sources), dict(names or {})
    rows = rows.assign(value=pd.to_numeric(rows["value"]), metric=rows["metric"].replace(names))
    wide = rows.pivot_table("value", [*by], "metric", sort=False).reset_index()
    wide = wide.rename(columns=names).rename_axis(columns=None)
    return wide.assign(**{name: factor * wide[name] for name, factor in (factors or {}).items() if name in wide})
