"""Growth on images, and averages over depth: published nowhere."""

from pandas import DataFrame

from formerlab.report.figures._vision import comparison, with_published
from formerlab.results.read import Results

STUDY = "vision"
READS = ("test.csv", "run.json")
RUNS = ("tokenformer*", "grown-*", "vit", "vit-dwa")
CAPTION = (
    "Tokenformers that grow on images, beside those trained from scratch, and models with averages over depth. A "
    "grown model pays for its parent: cumulative FLOPs. Neither is published for images: the method is that of "
    "Tokenformer (arXiv:2410.23168, section 3.3) and of DenseFormer (arXiv:2402.02622). Points are of top-1 accuracy,"
    " against another run and paired by seed. In brackets: 95 % Student t interval over seeds; with a single seed "
    "only the points have one, from a paired bootstrap over the test images, and the column interval says so. "
    "Calibration error: 15 bins. A run that diverged counts as a uniform guess."
)

_COMPARED = {
    "tokenformer-small": "tokenformer",
    "tokenformer": "tokenformer",
    "tokenformer-short": "tokenformer",
    "grown-random-sqrt": "tokenformer",
    "grown-zero-keep": "tokenformer",
    "tokenformer-dwa": "tokenformer",
    "vit": "vit",
    "vit-dwa": "vit",
}


def table(results: Results) -> DataFrame:
    """Return a row per run."""
    return with_published(comparison(results, _COMPARED), None)
