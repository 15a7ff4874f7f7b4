"""ViT and Tokenformer by size (Tokenformer, arXiv:2410.23168, Table 2)."""

from pandas import DataFrame

from formerlab.report.figures._vision import comparison, with_published
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("vit", "vit-wider", "tokenformer-matched", "tokenformer")
CAPTION = (
    "ViT and Tokenformer, with as many parameters and with a third more, after Table 2 of Tokenformer "
    "(arXiv:2410.23168). Points are of top-1 accuracy, against another run and paired by seed. In brackets: 95 % "
    "Student t interval over seeds; with a single seed only the points have one, from a paired bootstrap over the "
    "test images, and the column interval says so. Calibration error: 15 bins. A run that diverged counts as a "
    "uniform guess. The published rows are ImageNet-1K: compare differences, never levels."
)

_COMPARED = {"vit": "vit", "vit-wider": "vit", "tokenformer-matched": "vit", "tokenformer": "tokenformer-matched"}


def table(results: Results) -> DataFrame:
    """Return a row per run, then Table 2."""
    return with_published(comparison(results, _COMPARED), "Table 2")
