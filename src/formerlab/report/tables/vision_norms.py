"""What the norms of the blocks learn (Tokenformer, arXiv:2410.23168, Table 5)."""

from pandas import DataFrame

from formerlab.report.figures._vision import comparison, with_published
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("norm-*", "tokenformer")
CAPTION = (
    "Tokenformers whose block norms learn gain and bias, bias alone or nothing, after Table 5 of Tokenformer "
    "(arXiv:2410.23168); the final norm learns both in all of them. A gain common to all channels cannot matter in "
    "front of Pattention, only its variation can. Points are of top-1 accuracy, against another run and paired by "
    "seed. In brackets: 95 % Student t interval over seeds; with a single seed only the points have one, from a "
    "paired bootstrap over the test images, and the column interval says so. Calibration error: 15 bins. A run that "
    "diverged counts as a uniform guess. The published rows are ImageNet-1K."
)

_COMPARED = {"norm-gain-bias": "norm-gain-bias", "norm-bias": "norm-gain-bias", "tokenformer": "norm-gain-bias"}


def table(results: Results) -> DataFrame:
    """Return a row per kind of norm, then Table 5."""
    return with_published(comparison(results, _COMPARED), "Table 5")
