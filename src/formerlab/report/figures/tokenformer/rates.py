"""Validation loss against the learning rate, of Tokenformers, Transformers and stages of growth."""

from functools import partial

from formerlab.report.drawings import Plot
from formerlab.report.rates import draw, searches

tokenformer_rates = Plot(
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Search for the rates of the Tokenformer study (arXiv:2410.23168): validation loss at the end of training "
        "against the peak learning rate, for every model whose rate was searched: runs that differ in nothing else. "
        "What starts from a parent, such as a stage of growth, has a panel of its own. To see: each ringed rate has a "
        "higher and a lower one beside it in the grid; where it has not, the foot of the figure says so, and no "
        "comparison at that rate is fair."
    ),
    data=partial(searches, study="tokenformer"),
    draw=draw,
)
