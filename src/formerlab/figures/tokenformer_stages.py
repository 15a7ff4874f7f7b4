"""Held-out loss against the training cost of a stage alone (Tokenformer, arXiv:2410.23168, Fig 4)."""

import pandas as pd
from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.figures._tokenformer import series_points
from formerlab.figures._tokenformer_costs import draw_costs, published_points
from formerlab.results import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("transformer-*", "tokenformer-*", "grown-random-sqrt-[2-4]", "grown-half-*", "grown-double-*")
CATEGORY = "Tokenformer"
CAPTION = (
    "Held-out loss against the cost of the last stage alone, after Fig. 4 of Tokenformer (arXiv:2410.23168): what a "
    "size costs once the smaller one is there. To see: a grown model against the Transformer on the tokens of a "
    "stage, which has seen nothing before. This is a claim about the stage; what the ancestors cost is in the figure "
    "of cumulative cost. Right: the published points, in TPU hours read from the figure."
)

_CURVES = (
    ("Transformer", "300B", "Fig 4", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "30B", "Fig 4", "grown, 30B a stage"),
)
_COLUMNS = {
    "flops": "FLOPs of the stage",
    "training_time_s": "time on the device (s)",
    "tokens": "tokens of the stage",
}


def data(results: Results) -> DataFrame:
    """Return a row per plotted point."""
    return pd.concat(
        [series_points(results, RUNS, grown_from=2), published_points(_CURVES, start=False)], ignore_index=True
    )


def draw(data: DataFrame) -> Figure:
    """Draw our points in three currencies, and the published ones."""
    return draw_costs(data, _COLUMNS, "Ours, one stage", ["Published: OpenWebText perplexities."])
