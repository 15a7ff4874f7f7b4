"""Held-out loss against the training cost of a stage alone (Tokenformer, arXiv:2410.23168, Fig 4)."""

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._tokenformer_costs import cost_points, draw_costs
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("transformer-*", "tokenformer-*", "grown-random-sqrt-[2-4]", "grown-half-*", "grown-double-*")
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
    return cost_points(results, RUNS, _CURVES, chains=False)


def draw(data: DataFrame) -> Figure:
    """Draw our points in three currencies, and the published ones."""
    return draw_costs(data, _COLUMNS, "Ours, one stage", ["Published: OpenWebText perplexities."])
