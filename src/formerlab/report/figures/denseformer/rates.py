"""Validation loss against the learning rate, of plain stacks and of those that mix over depth."""

from functools import partial

from formerlab.report.drawings import Plot
from formerlab.report.rates import draw, searches

denseformer_rates = Plot(
    reads=("eval.csv", "run.json"),
    runs=("*",),
    varied="optimizer.lr",
    caption=(
        "Search for the rates of the DenseFormer study (arXiv:2402.02622): validation loss at the end of training "
        "against the peak learning rate, for every stack whose rate was searched: runs that differ in nothing else. "
        "Each depth has a panel. To see: each ringed rate has a higher and a lower one beside it in the grid; where "
        "it has not, the foot of the figure says so, and no comparison at that rate is fair."
    ),
    data=partial(searches, study="denseformer"),
    draw=draw,
)
