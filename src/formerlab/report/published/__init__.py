"""Published results of the papers and of those who repeated them, as printed; drawn beside ours, never mixed in."""

from importlib.resources import files

import pandas as pd
from pandas import DataFrame

TOKENFORMER = "TokenFormer (2410.23168)"
DENSEFORMER = "DenseFormer (2402.02622)"
TRANSFORMER = "Attention Is All You Need (1706.03762)"
DECAY = "Accumulated Attention Score Decaying (Jo and Shin 2024)"


def published(paper: str, *places: str) -> DataFrame:
    """Return the published values of a paper's tables or figures (`Table 1`, `Fig 3`, ...), or all of them.

    Columns: paper, table_or_figure, model, setting, metric, value, unit, source_kind (table, text, figure-read, ...),
    note.
    """
    with files(__name__).joinpath("published_results.csv").open(encoding="utf-8") as file:
        rows = pd.read_csv(file, keep_default_na=False)
    chosen = rows[rows.paper == paper]
    return chosen[chosen.table_or_figure.isin(places)] if places else chosen
