"""Held-out loss against cumulative training cost (Tokenformer, arXiv:2410.23168, Fig 1 and 3)."""

from matplotlib.figure import Figure
from pandas import DataFrame

from formerlab.report.figures._tokenformer_costs import cost_points, draw_costs
from formerlab.results.read import Results

STUDY = "tokenformer"
READS = ("test.csv", "run.json")
RUNS = ("transformer-*", "tokenformer-*", "grown-random-sqrt-[2-4]", "grown-half-*", "grown-double-*")
CAPTION = (
    "Held-out loss against training cost, after Fig. 1 and 3 of Tokenformer (arXiv:2410.23168), in FLOPs of matrix "
    "products and attention, in time of the device, and in tokens. A grown model pays for all its ancestors. Points "
    "are finished models, lines join sizes. To see: growing is worth it where its line lies below and to the left of "
    "models trained from scratch; the Tokenformers from scratch have the FLOPs of the chain, so what separates the "
    "two is reuse alone. Right: the published points, for models a thousand times larger; their Transformers are "
    "single runs, so only the shape compares."
)

_CURVES = (
    ("Transformer", "300B", "Fig 3", "Transformer, 300B tokens"),
    ("Transformer", "30B", "Fig 4", "Transformer, 30B tokens"),
    ("TokenFormer", "60B", "Fig 3", "grown, 60B a stage"),
    ("TokenFormer", "30B", "Fig 3", "grown, 30B a stage"),
    ("TokenFormer", "15B", "Fig 3", "grown, 15B a stage"),
)
_COLUMNS = {
    "flops_cumulative": "cumulative FLOPs",
    "training_time_s_cumulative": "cumulative time on the device (s)",
    "tokens_cumulative": "cumulative tokens",
}


def data(results: Results) -> DataFrame:
    """Return a row per plotted point; the chains of growth share their first model."""
    return cost_points(results, RUNS, _CURVES, chains=True)


def draw(data: DataFrame) -> Figure:
    """Draw our points in three currencies, and the published ones."""
    note = "Published: OpenWebText perplexities; Transformer costs are those of single runs."
    return draw_costs(data, _COLUMNS, "Ours, whole chains", [note])
