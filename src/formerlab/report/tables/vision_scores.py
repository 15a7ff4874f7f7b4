"""Scores of the parameter attention (Tokenformer, arXiv:2410.23168, Table 4)."""

from pandas import DataFrame

from formerlab.report.figures._vision import comparison, with_published
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("score-*", "tokenformer")
CAPTION = (
    "What stands in place of softmax in the parameter attention, after Table 4 of Tokenformer (arXiv:2410.23168): its"
    " rows change the activation and the norm, and from the second to the third also their order, so the same two in "
    "the other order stand here too. GeLU with the L1 norm exists in neither official code; ours is GeLU first, the "
    "sum of absolute values, times n. Points are of top-1 accuracy, against another run and paired by seed. In "
    "brackets: 95 % Student t interval over seeds; with a single seed only the points have one, from a paired "
    "bootstrap over the test images, and the column interval says so. Calibration error: 15 bins. A run that diverged"
    " counts as a uniform guess. The published rows are ImageNet-1K."
)

_COMPARED = {
    "score-exp-l1": "score-exp-l1",
    "score-gelu-l1": "score-exp-l1",
    "score-gelu-l2": "score-gelu-l1",
    "tokenformer": "score-gelu-l1",
}


def table(results: Results) -> DataFrame:
    """Return a row per score, then Table 4."""
    return with_published(comparison(results, _COMPARED), "Table 4")
